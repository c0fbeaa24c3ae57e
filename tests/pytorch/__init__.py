"""What the rest of PyTorch asks of an accelerator; `make ecosystem-table` writes down how each of these went."""
