"""The test suite: PyTorch's CPU device is the specification, and most tests run one program on both devices."""

import os

os.environ.setdefault("TORCH_TINY_CACHE", "0")  # tests count compiles: none of them comes from an earlier run
os.environ.setdefault("TORCH_TINY_COMPILE", "always")  # and kernels, from the first run on
# A program for many sizes takes several times as long to compile; tests/sizes is about them.
os.environ.setdefault("TORCH_TINY_SIZES", "0")
