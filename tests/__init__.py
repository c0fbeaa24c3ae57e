"""The test suite: PyTorch's CPU device is the specification, and most tests run one program on both devices."""
