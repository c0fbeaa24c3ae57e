"""Builds the C++ runtime against the torch that is installed. Everything else is in pyproject.toml."""

import os
import subprocess
import sys
from pathlib import Path

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

# ATen's parallel loops are written in its headers: without this they run on one thread.
openmp = ["-fopenmp"] if sys.platform == "linux" else []
# PyTorch's libraries share one libstdc++. A compiler that would link its own into the extension makes two of them in a
# process, and writing a number into a message then crashes: each has its own locale.
shared_runtime = ["-l:libstdc++.so.6"] if sys.platform == "linux" else []
sources = sorted(str(p) for p in Path("torch_tinygrad/csrc").glob("*.cpp"))


class Build(BuildExtension):
    """Also gathers what the package must know about its compiler at the start (torch_tinygrad/facts.py), if it is built
    to be installed, and what that needs is there."""

    def run(self):
        super().run()
        if self.inplace and not self.editable_mode:
            return
        code = "import torch_tinygrad; torch_tinygrad.load(); from torch_tinygrad import facts; facts.write_packaged()"
        folder = os.path.abspath("." if self.inplace else self.build_lib)
        environment = {**os.environ, "PYTHONPATH": folder, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
        subprocess.run([sys.executable, "-c", code], env=environment, stderr=subprocess.DEVNULL, check=False)


setup(
    ext_modules=[
        CppExtension(
            "torch_tinygrad._C",
            sources,
            extra_compile_args=["-O2", "-Wall", "-Wno-sign-compare", "-fvisibility=hidden", *openmp],
            extra_link_args=[*openmp, *shared_runtime],
        )
    ],
    cmdclass={"build_ext": Build},
)
