"""The extension under the compiler's checkers: `make sanitize`.

It is built twice, in folders of its own under build/sanitize: with AddressSanitizer and UndefinedBehaviorSanitizer, and
with ThreadSanitizer. The tests of views, threads and faults then run with it; a report of a checker about the extension
ends the run. What PyTorch's and Python's own code is reported for, which was not built for a checker, is suppressed by
the files in tests/suppressions."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch.utils.cpp_extension import include_paths, library_paths

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "torch_tinygrad"
SUPPRESSIONS = ROOT / "tests" / "suppressions"
COMPILER = os.environ.get("CXX", "g++")

CHECKERS = {"address": "address,undefined", "thread": "thread"}
PRELOADED = {"address": ("libasan.so", "libubsan.so"), "thread": ("libtsan.so",)}
OPTIONS = {
    "address": {
        # PyTorch and Python keep memory to the end, and allocate what others free.
        "ASAN_OPTIONS": "detect_leaks=0:alloc_dealloc_mismatch=0:detect_odr_violation=0:handle_segv=0",
        "UBSAN_OPTIONS": f"print_stacktrace=1:halt_on_error=1:suppressions={SUPPRESSIONS / 'undefined.txt'}",
    },
    "thread": {
        "TSAN_OPTIONS": f"halt_on_error=1:exitcode=66:ignore_noninstrumented_modules=1:history_size=7"
        f":suppressions={SUPPRESSIONS / 'thread.txt'}",
    },
}
TESTS = {
    "address": (
        *("aliasing/test_views.py", "aliasing/test_overlaps.py", "aliasing/test_setitem.py"),
        *("errors/test_faults.py", "errors/test_index_errors.py"),
        *(
            "device/test_host_memory.py",
            "device/test_addresses.py",
            "service/test_direct.py",
            "pytorch/test_interchange.py",
        ),
        "device/test_recording_threads.py",
    ),
    "thread": ("device/test_recording_threads.py", "engine/test_threads.py", "pytorch/test_streams.py"),
}


class Built:
    """The extension for a checker, and the package's other files beside it."""

    def __init__(self, checker: str):
        self.checker, self.folder = checker, ROOT / "build" / "sanitize" / checker
        abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}"
        flags = "-std=c++20 -O1 -g1 -fno-omit-frame-pointer -fPIC -fvisibility=hidden -fopenmp -fwrapv -DNDEBUG"
        # What a polymorphic object is cannot be told across libraries that hide their symbols.
        flags += f" -fsanitize={CHECKERS[checker]} -fno-sanitize=vptr -DTORCH_EXTENSION_NAME=_C"
        headers = [*include_paths(), sysconfig.get_path("include")]
        self.compile = [COMPILER, *flags.split(), abi, f"-I{PACKAGE / 'csrc'}"]
        self.compile += [f"-isystem{path}" for path in headers]

    def build(self, jobs: int) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        sources = sorted((PACKAGE / "csrc").glob("*/*.cpp"))
        newest = max(path.stat().st_mtime for path in (PACKAGE / "csrc").glob("*/*.h"))
        stale = [s for s in sources if self.made(s) < max(s.stat().st_mtime, newest)]
        if stale:
            common = self.common_headers(sources)
            with ThreadPoolExecutor(jobs) as pool:
                list(pool.map(lambda s: self.run("-include", common, "-c", s, "-o", self.object(s)), stale))
        package = self.folder / "torch_tinygrad"
        package.mkdir(exist_ok=True)
        library = package / f"_C{sysconfig.get_config_var('EXT_SUFFIX')}"
        if stale or not library.exists():
            libraries = [f"-L{path}" for path in library_paths()] + "-lc10 -ltorch_cpu -ltorch -ltorch_python".split()
            self.run("-shared", *map(self.object, sources), *libraries, "-o", library)
        for path in PACKAGE.iterdir():
            if path.suffix != ".so" and path.name != "__pycache__" and not (package / path.name).exists():
                (package / path.name).symlink_to(path)

    def common_headers(self, sources: list[Path]) -> Path:
        """PyTorch's headers, which are most of what is compiled, read once."""
        found = {
            line for s in sources for line in re.findall(r"^#include <(?:ATen|c10)/.*>$", s.read_text(), re.MULTILINE)
        }
        common = self.folder / "common.h"
        common.write_text("\n".join(sorted(found)) + "\n")
        self.run("-x", "c++-header", common, "-o", f"{common}.gch")
        return common

    def object(self, source: Path) -> Path:
        return self.folder / f"{source.stem}.o"

    def made(self, source: Path) -> float:
        """When its object was, 0 if it is not there."""
        return self.object(source).stat().st_mtime if self.object(source).exists() else 0.0

    def run(self, *arguments: str | Path) -> None:
        subprocess.run([*self.compile, *map(str, arguments)], check=True)

    def environment(self) -> dict[str, str]:
        def found(name: str) -> str:
            return subprocess.check_output([COMPILER, f"-print-file-name={name}"], text=True).strip()

        runtime = ":".join(map(found, (*PRELOADED[self.checker], "libstdc++.so.6")))
        path = ":".join(filter(None, (str(self.folder), str(ROOT), os.environ.get("PYTHONPATH"))))
        ours = {"LD_PRELOAD": runtime, "PYTHONPATH": path, "TORCH_TINY_SANITIZED": self.checker}
        return {**os.environ, **OPTIONS[self.checker], **ours}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkers", nargs="*", default=list(CHECKERS))
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--build", action="store_true", help="build only")
    parser.add_argument("--tests", nargs="*", help="files under tests/, in place of the usual ones")
    options = parser.parse_args()
    for checker in options.checkers:
        built = Built(checker)
        built.build(options.jobs)
        if options.build:
            continue
        tests = [str(ROOT / "tests" / name) for name in options.tests or TESTS[checker]]
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-x",
            "-s",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:faulthandler",
            *tests,
        ]
        print(f"{checker}: {len(tests)} files of tests", flush=True)
        if failed := subprocess.run(command, cwd=ROOT, env=built.environment(), check=False).returncode:
            return failed
    return 0


if __name__ == "__main__":
    sys.exit(main())
