"""aten → tinygrad, one file per family. Importing this package fills the table in `registry`."""

import importlib
import pkgutil

# First of all: tinygrad keeps a rule as it was when it first used it, and lowerings that are made use some.
from ..engine import exact as exact

for _module in pkgutil.walk_packages(__path__, f"{__name__}."):
    importlib.import_module(_module.name)
