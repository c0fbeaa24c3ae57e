"""The room `engine/`: kernels, their order, merging, memory, threads and code."""
