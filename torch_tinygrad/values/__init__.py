"""From a trace to tinygrad's values: storages as flat arrays, writes as patches, what is stored and what is a step."""
