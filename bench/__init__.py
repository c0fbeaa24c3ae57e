"""Side-by-side benchmarks: eager PyTorch on the CPU, torch.compile, tinygrad under TinyJit, and plain eager code on `tiny`."""
