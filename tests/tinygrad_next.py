"""The suite against another tinygrad, in an environment of its own, and what broke.

    python -m tests.tinygrad_next 0.15.0 --folder .venv/tinygrad-next tests/operators -q
    python -m tests.tinygrad_next ../tinygrad

First every correction is applied by itself, and every module of ours imported: what tinygrad no longer has is said all
at once. Then the tests run, with the corrections that could be applied; what fails is listed at the end. Whether those
corrections are still needed: `python -m tests.corrections` in the same environment.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import subprocess
import sys
import sysconfig
from importlib.metadata import version
from pathlib import Path


def environment(folder: Path, tinygrad: str) -> Path:
    """The Python of one that has all packages of this one, with that tinygrad before them."""
    python = folder.resolve() / "bin/python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    purelib = next(folder.glob("lib/python*/site-packages"))
    (purelib / "base.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    wanted = str(Path(tinygrad).resolve()) if Path(tinygrad).exists() else f"tinygrad=={tinygrad}"
    install = [str(python), "-m", "pip", "install", "-q", "--no-deps", "--force-reinstall", wanted]
    subprocess.run(install, check=True)
    return python


def reason(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


def broken_corrections() -> dict[str, str]:
    """Name → what is not there. Nothing where the module of one cannot be imported: then modules tell."""
    try:
        from torch_tinygrad import corrections
    except ImportError:
        return {}
    found = {}
    for one in corrections.ALL.values():
        try:
            one.change()
        except Exception as error:
            found[one.name] = f"{reason(error)}. It is for this: {one.why} (tests/{one.test})"
    return found


def broken_modules() -> dict[str, str]:
    """What is not there → the modules that cannot be imported for it."""
    package = importlib.import_module("torch_tinygrad")
    found: dict[str, list[str]] = {}
    for module in pkgutil.walk_packages(package.__path__, "torch_tinygrad.", onerror=lambda name: None):
        if not module.name.endswith("__main__"):
            try:
                importlib.import_module(module.name)
            except Exception as error:
                found.setdefault(reason(error), []).append(module.name)
    return {why: ", ".join(names) for why, names in found.items()}


def report(arguments: list[str]) -> int:
    """In that environment. Corrections are applied for good: the tests need a process of their own."""
    print(f"tinygrad {version('tinygrad')}", flush=True)
    corrections = broken_corrections()
    for name, why in corrections.items():
        print(f"the correction {name} does not apply: {why}")
    prepared = f"import torch\nfrom torch_tinygrad import corrections\nfor name in {list(corrections)!r}:\n"
    prepared = prepared + "    del corrections.ALL[name]\n" if corrections else "import torch\n"
    check = "from tests import tinygrad_next\nfor item in tinygrad_next.broken_modules().items():\n    print(*item)"
    broken = subprocess.run([sys.executable, "-c", prepared + check], capture_output=True, text=True)
    for line in broken.stdout.splitlines():
        print(f"cannot be imported: {line}")
    if broken.returncode:
        print(f"torch_tinygrad cannot be imported: {broken.stderr.strip().splitlines()[-1]}")
        return 1
    if broken.stdout:
        print("Nothing can be compiled with this tinygrad: no tests were run.")
        return 1
    tests = f"{prepared}import sys, pytest\nsys.exit(pytest.main(sys.argv[1:]))"
    done = subprocess.run([sys.executable, "-c", tests, "-q", "--tb=line", "-rfE", *(arguments or ["tests"])])
    print(f"{len(corrections)} corrections do not apply; the tests {'fail' if done.returncode else 'pass'}")
    return int(bool(corrections) or done.returncode != 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tinygrad", help="a version that pip knows, or the path of a checkout")
    parser.add_argument("--folder", type=Path, default=Path(".venv/tinygrad-next"))
    options, rest = parser.parse_known_args()
    python = environment(options.folder, options.tinygrad)
    code = "import sys; from tests import tinygrad_next; sys.exit(tinygrad_next.report(sys.argv[1:]))"
    return subprocess.run([str(python), "-c", code, *rest]).returncode


if __name__ == "__main__":
    sys.exit(main())
