"""PyTorch's own database of operators, run on the CPU and on the device: what passes is what is supported."""
