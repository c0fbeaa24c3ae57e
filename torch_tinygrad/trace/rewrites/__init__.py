"""Decompositions of our own, for operators that PyTorch's tables leave out or write in operators nobody lowers.

They run on Meta tensors that lie over their storages as the real ones do, so views and writes mean what they say.
"""

from . import general, histogram, linalg, sampling, transformers
from .registry import REWRITES

__all__ = ["REWRITES", "general", "histogram", "linalg", "sampling", "transformers"]
