"""Wheels: the command that makes one, and what it holds, without compiling anything."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.installed import check_contents
from torch_tinygrad import _C

ROOT = Path(__file__).parents[2]

# setup.py as it is, but for the compiler: the extension is there.
BUILD = """
import os, shutil, sys
from torch.utils.cpp_extension import BuildExtension

def run(self):
    target = self.get_ext_fullpath("torch_tinygrad._C")
    os.makedirs(os.path.dirname(target), exist_ok=True)
    shutil.copy({extension!r}, target)

BuildExtension.run = run
sys.argv = ["setup.py", "-q", "bdist_wheel"]
exec(compile(open("setup.py").read(), "setup.py", "exec"), {{"__name__": "__main__", "__file__": "setup.py"}})
"""


@pytest.mark.skipif(shutil.which("make") is None, reason="without make")
@pytest.mark.parametrize("given", [[], ["TORCH=torch==2.15.0"]])
def test_a_wheel_is_made_for_a_version(given):
    """Not for a requirement, which `TORCH` is."""
    done = subprocess.run(["make", "-n", "wheel", *given], cwd=ROOT, capture_output=True, text=True, check=True)
    version = given[0].rpartition("=")[2] if given else "2.13.0"
    assert f"--torch {version} " in done.stdout and "torch==" not in done.stdout


def test_a_wheel_holds_what_the_package_needs(tmp_path):
    """What the start must know is gathered from what was built, not from the source, which has no extension."""
    ignored = shutil.ignore_patterns("*.so", "__pycache__", "facts.json", "built_for.txt")
    shutil.copytree(ROOT / "torch_tinygrad", tmp_path / "torch_tinygrad", ignore=ignored)
    for name in ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md"):
        shutil.copy(ROOT / name, tmp_path)
    code = BUILD.format(extension=_C.__file__)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    check_contents(wheel)
    with zipfile.ZipFile(wheel) as file:
        assert not [name for name in file.namelist() if "__pycache__" in name]
