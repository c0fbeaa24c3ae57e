"""Side-by-side benchmarks: eager PyTorch, torch.compile, tinygrad under TinyJit, and plain eager code on `tiny`."""
