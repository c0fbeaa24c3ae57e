"""The helper process as its parent sees it: started, asked, ended."""

from __future__ import annotations

import os
import pickle
import re
import signal
import subprocess
import sys
from pathlib import Path

from .bounds import Failure
from .wire import receive, send

# For the helper alone: one thread, and PyTorch without any other backend.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
}

# What the user's program put on the path, or its environment says about Python, is no business of the helper (-I).
START = "import sys; sys.path[:] = {path!r}; from torch_tinygrad.service import worker; worker.main({parent}, {clang})"


class Broken(RuntimeError):
    """A helper cannot be had, and says why."""


def interpreter() -> str | None:
    """A Python to run the helper with; none in programs that are not run by one of their own."""
    found = sys.executable or ""
    is_python = re.match(r"(python|pypy)", os.path.basename(found), re.IGNORECASE) is not None
    if getattr(sys, "frozen", False) or not is_python or not os.access(found, os.X_OK):
        return None
    return found


def _path() -> list[str]:
    """Where the helper finds modules: as here, but without the folder of the user's script, unless it needs that."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    of_user = {os.getcwd(), os.path.dirname(os.path.abspath(main)) if main else ""}
    own, *entries = [str(Path(__file__).parents[2]), *map(os.path.abspath, sys.path)]

    def is_needed(entry: str) -> bool:
        return entry not in of_user or any((Path(entry) / name).exists() for name in ("torch", "tinygrad", "numpy"))

    return [own, *(entry for entry in entries if entry != own and is_needed(entry))]


class Helper:
    """To be started and used by one thread, which outlives it: the system ends it with the thread that started it."""

    def __init__(self, digest: str, environment: dict[str, str], clang: list[str] | None):
        python = interpreter()
        if python is None:
            raise Broken(f"there is no Python to start a helper process with ({sys.executable!r})")
        code = START.format(path=_path(), parent=os.getpid(), clang=clang)
        self.process = subprocess.Popen(
            [python, "-I", "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={**environment, **ENVIRONMENT},
            bufsize=0,
            # An interrupt from the terminal is not for it. In a session of its own it would not stand back: Linux
            # shares the processors out between sessions first, and priorities count within each.
            process_group=0,
        )
        self.requests, self.answers = self.process.stdin.fileno(), self.process.stdout.fileno()
        self.digest = digest
        self.is_ready = False

    def _wait_until_ready(self) -> None:
        hello = receive(self.answers)
        if hello is None:
            raise Broken("the helper process ended before it was ready")
        digest, error = pickle.loads(hello)
        if error:
            raise Broken(f"the helper process cannot be set up: {error.strip().splitlines()[-1]}")
        if self.digest and digest != self.digest:
            raise Broken("the helper process has other versions or settings than this one")
        self.is_ready = True

    def compiled(self, message: bytes) -> bytes | Failure | None:
        """A program's bytes or why there are none; nothing where the helper is gone."""
        if not self.is_ready:
            self._wait_until_ready()
        try:
            send(self.requests, message)
            answer = receive(self.answers)
        except OSError:
            return None
        return None if answer is None else pickle.loads(answer)

    def kill(self) -> None:
        """At once, with all that it started. From any thread: the one that uses it finds the pipes ended."""
        if self.process.poll() is None:
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except OSError:
                self.process.kill()
        self.process.wait()

    def end(self) -> None:
        self.kill()
        self.forget()

    def forget(self) -> None:
        """Closes this side of the pipes."""
        for pipe in (self.process.stdin, self.process.stdout):
            try:
                pipe.close()
            except OSError:
                pass
