"""What a compile may take, set for its process by the system, and what its end means."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from dataclasses import dataclass

from ..choice import is_host

# Signals by which a process ends for a fault of its own. Others come from outside.
FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT, signal.SIGSYS, signal.SIGTRAP}


# Errors that may pass: no memory, a full disk, a compiler that is not there or was killed. All others last.
MAY_PASS = (MemoryError, OSError, subprocess.SubprocessError)


@dataclass(frozen=True)
class Failure:
    """Why there is no program. One that `lasts` is the same next time; others (no compiler, a full disk) may pass."""

    reason: str
    lasts: bool


@dataclass(frozen=True)
class Bounds:
    seconds: int  # of processor time
    memory: int  # bytes

    @property
    def wall(self) -> float:
        """Seconds after which something must have gone wrong, however busy the machine is."""
        return 20.0 * self.seconds

    @staticmethod
    def from_environment() -> Bounds:
        """`TORCH_TINY_COMPILE_SECONDS` and `TORCH_TINY_COMPILE_MEMORY` (bytes)."""
        searches = any(os.environ.get(name, "0") != "0" for name in ("BEAM", "JITBEAM"))
        usual = 60 if is_host() else 600  # compilers of GPUs take a tenth of a second for a kernel
        seconds = int(float(os.environ.get("TORCH_TINY_COMPILE_SECONDS", 1200 if searches else usual)))
        return Bounds(max(1, seconds), int(float(os.environ.get("TORCH_TINY_COMPILE_MEMORY", 4 << 30))))

    def apply(self) -> None:
        """For this process and those it starts. Address space would say little: PyTorch alone reserves gigabytes."""
        for limit, value in (
            (resource.RLIMIT_CPU, self.seconds),
            (resource.RLIMIT_DATA, self.memory),
            (resource.RLIMIT_CORE, 0),
        ):
            _, most = resource.getrlimit(limit)
            soft = value if most == resource.RLIM_INFINITY else min(value, most)
            resource.setrlimit(limit, (soft, most))

    def took_too_long(self) -> Failure:
        return Failure(f"compiling takes more than {self.seconds} s (TORCH_TINY_COMPILE_SECONDS)", True)

    def needs_too_much(self) -> Failure:
        return Failure(f"compiling takes more than {self.memory >> 20} MiB (TORCH_TINY_COMPILE_MEMORY)", True)

    def after_exit(self, status: int) -> Failure:
        """What the end of a process means that left no answer; `status` as `os.waitpid` gives it."""
        if not os.WIFSIGNALED(status):
            return Failure(f"the compiling process ended with code {os.waitstatus_to_exitcode(status)}", True)
        number = os.WTERMSIG(status)
        if number == signal.SIGXCPU:
            return self.took_too_long()
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        if number in FAULTS:
            return Failure(f"the compiling process crashed ({name})", True)
        return Failure(f"the compiling process was ended ({name})", False)
