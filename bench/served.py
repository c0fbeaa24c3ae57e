"""A step in a process of its own, timed whenever it is asked to be: contenders take turns on one thread."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable

import torch

from .contender import ONE_THREAD

CALLS = 200


def serve(step: Callable[[], float], who: str) -> None:
    """Prints a line when warm, and seconds of this thread's processor time of a step for each line it is given."""
    torch.set_num_threads(1)
    for _ in range(30):
        step()
    if who.startswith("tiny"):
        torch.tiny.wait_for_compiles()
    for _ in range(100):
        value = step()
    print("RIGHT", value, flush=True)
    for _ in sys.stdin:
        begin = time.thread_time()
        for _ in range(CALLS):
            step()
        print("TOOK", (time.thread_time() - begin) / CALLS, flush=True)


class Contender:
    """`module` builds the step `what` for `who`, when it is run with them, and serves it."""

    def __init__(self, module: str, who: str, what: str):
        environment = {**os.environ, **ONE_THREAD}
        if not who.startswith("tiny"):
            environment["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"  # our backend has no part in it
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, "--serve", who, what],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip

    def said(self, word: str) -> float:
        for line in self.process.stdout or ():
            if line.startswith(word):
                return float(line.split()[1])
        raise RuntimeError("a contender ended")

    def round(self) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.said("TOOK")

    def stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(10)
