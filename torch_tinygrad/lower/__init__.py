"""aten → tinygrad, one file per family. Importing this package fills the table in `registry`."""

import importlib
import pkgutil

from .. import kernels as kernels  # first of all: it corrects tinygrad, and lowerings make values as they are made

for _module in pkgutil.walk_packages(__path__, f"{__name__}."):
    importlib.import_module(_module.name)
