"""Builds the C++ runtime against the torch that is installed. Everything else is in pyproject.toml."""

import os
import re
import subprocess
import sys
from pathlib import Path

import torch
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")[:2]))


# PyTorch's C++ interface is that of a minor version: what is built here runs with no other, and the wheel says so.
least, beyond = re.findall(r'"torch>=([\d.]+),<([\d.]+)"', Path("pyproject.toml").read_text())[0]
minor = ".".join(torch.__version__.split(".")[:2])
if not numbers(least) <= numbers(minor) < numbers(beyond):
    sys.exit(f"torch-tinygrad is for torch from {least} to below {beyond}, and this is torch {torch.__version__}")

# ATen's parallel loops are written in its headers: without this they run on one thread.
openmp = ["-fopenmp"] if sys.platform == "linux" else []
# PyTorch's libraries share one libstdc++. A compiler that would link its own into the extension makes two of them in a
# process, and writing a number into a message then crashes: each has its own locale.
shared_runtime = ["-l:libstdc++.so.6"] if sys.platform == "linux" else []
# Debugging information is 97 of 100 MiB and a third of the time to build: only `setup.py build_ext --inplace` makes it.
lean = [] if "build_ext" in sys.argv else ["-g0"]
sources = sorted(str(p) for p in Path("torch_tinygrad/csrc").glob("*/*.cpp"))


class Build(BuildExtension):
    """Also notes which torch it was built for (torch_tinygrad/__init__.py reads it), and gathers what the package must
    know about its compiler at the start (torch_tinygrad/facts.py), if it is built to be installed, and what that needs
    is there."""

    def run(self):
        super().run()
        Path(self.get_ext_fullpath("torch_tinygrad._C")).with_name("built_for.txt").write_text(minor)
        if self.inplace and not self.editable_mode:
            return
        code = "import torch_tinygrad; torch_tinygrad.load(); from torch_tinygrad import facts; facts.write_packaged()"
        folder = os.path.abspath("." if self.inplace else self.build_lib)
        environment = {**os.environ, "PYTHONPATH": folder, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
        # From there: Python imports first from where it runs, and the source has no extension.
        options = {"cwd": folder, "env": environment, "stderr": subprocess.DEVNULL, "check": False}
        subprocess.run([sys.executable, "-c", code], **options)


setup(
    # ziglang is a clang for machines that have none.
    install_requires=[f"torch=={minor}.*", "tinygrad==0.14.0", "numpy", "ziglang"],
    ext_modules=[
        CppExtension(
            "torch_tinygrad._C",
            sources,
            include_dirs=[str(Path("torch_tinygrad/csrc").resolve())],  # includes name the room of a header
            extra_compile_args=["-O2", *lean, "-Wall", "-Wno-sign-compare", "-fvisibility=hidden", *openmp],
            extra_link_args=[*openmp, *shared_runtime],
        )
    ],
    cmdclass={"build_ext": Build},
)
