"""Installs the package as a user does, into environments of its own, and looks whether it works there.

`python -m tests.installed --torch 2.15 --folder /tmp/there`: a wheel is built for that torch, in an environment that
has it, and installed; then what it holds is checked, `python -m torch_tinygrad`, training after `import torch` alone
and the message that another torch gets. `--keep dist` keeps the wheel, and checks it in a second environment, which has
nothing but what it asks for. Imports nothing but the standard library: it runs before there is anything else.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
# What must be in the wheel, and what must not.
NEEDED = (
    "torch_tinygrad/_C.cpython-",
    "torch_tinygrad/_C.pyi",
    "torch_tinygrad/built_for.txt",
    "torch_tinygrad/facts.json",
    "torch_tinygrad/lower/rare/",
)
UNWANTED = ("tests/", "bench/", "ecosystem/", "torch_tinygrad/csrc/")

TRAINING = """
import torch

def losses(device):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x = torch.linspace(-1, 1, 64).view(8, 8).to(device)
    found = []
    for step in range(4):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
        torch.tiny.wait_for_compiles()
    return found

torch.testing.assert_close(losses("tiny"), losses("cpu"), rtol=1e-4, atol=1e-6)
counts = torch.tiny.stats()
assert counts["compiles"] and not counts["fallbacks"] and not counts["not_compiled"], counts
compiled = torch.compile(lambda x: (x * 2).sum(), backend="tiny")
assert compiled(torch.ones(4, device="tiny")).item() == 8
"""

OTHER_TORCH = """
import pathlib, warnings
import torch
note = pathlib.Path(torch.__path__[0]).parent / "torch_tinygrad/built_for.txt"
assert torch.__version__.startswith(note.read_text() + "."), (torch.__version__, note.read_text())
import torch_tinygrad
torch_tinygrad._loaded, torch.__version__ = False, "2.99.0"
with warnings.catch_warnings(record=True) as caught:
    torch_tinygrad._autoload()
(warning,) = caught
text = str(warning.message)
assert text.startswith("there is no device 'tiny': torch-tinygrad was built for torch") and "\\n" not in text, text
"""


class Environment:
    def __init__(self, folder: Path):
        self.folder = folder
        self.python = folder / "bin/python"
        if not self.python.exists():
            subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)

    def run(self, *arguments: str, **options) -> None:
        # Outside of the checkout: what is imported is what was installed.
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("TORCH_TINY_", "PYTHONPATH", "DEV"))}
        path = f"{self.folder / 'bin'}{os.pathsep}{environment.get('PATH', '')}"
        environment |= {"TORCH_TINY_CACHE": str(self.folder / "cache"), "PATH": path}
        subprocess.run([str(self.python), *arguments], check=True, env=environment, **{"cwd": self.folder, **options})

    def install(self, *packages: str) -> None:
        self.run("-m", "pip", "install", "-q", *packages)


def built(environment: Environment, folder: Path) -> Path:
    """By `python -m build`: the wheel comes from the source distribution, which is so known to be complete."""
    environment.install("build", "setuptools>=77", "wheel", "ninja", "numpy", "tinygrad==0.14.0")
    # From a copy: objects that were built for another torch lie in the checkout.
    source = folder / "source"
    ignored = shutil.ignore_patterns("*.so", "__pycache__", "facts.json", "built_for.txt")
    shutil.copytree(ROOT / "torch_tinygrad", source / "torch_tinygrad", ignore=ignored)
    for name in ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md"):
        shutil.copy(ROOT / name, source)
    environment.run("-m", "build", "--no-isolation", "--outdir", str(folder), cwd=source, stdout=subprocess.DEVNULL)
    (wheel,) = folder.glob("*.whl")
    return wheel


def check_contents(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as file:
        names = file.namelist()
    missing = [start for start in NEEDED if not any(name.startswith(start) for name in names)]
    unwanted = [name for name in names if name.startswith(UNWANTED)]
    assert not missing and not unwanted, f"missing: {missing}, unwanted: {unwanted}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torch", required=True, help="a version, as 2.15 or 2.13.0")
    parser.add_argument(
        "--folder", type=Path, required=True, help="where environments are made; what is made there goes again"
    )
    parser.add_argument("--keep", type=Path, help="a folder to put the wheel into")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.folder.resolve(), prefix=f"{options.torch}-") as name:
        folder = Path(name)
        torch = f"torch=={options.torch}" + ("" if options.torch.count(".") > 1 else ".*")
        environment = Environment(folder / "environment")
        environment.install(torch)
        wheel = built(environment, folder)
        check_contents(wheel)
        if options.keep:
            # A second environment, with what the wheel itself asks for and nothing that building it needed.
            environment = Environment(folder / "clean")
            environment.install(torch)
        environment.install(str(wheel))
        environment.run("-m", "torch_tinygrad")
        environment.run("-c", TRAINING)
        environment.run("-c", OTHER_TORCH)
        size = wheel.stat().st_size / 2**20
        print(f"torch {options.torch}: {wheel.name}, {size:.1f} MiB, installs and works", flush=True)
        if options.keep:
            options.keep.mkdir(exist_ok=True)
            shutil.copy(wheel, options.keep)


if __name__ == "__main__":
    main()
