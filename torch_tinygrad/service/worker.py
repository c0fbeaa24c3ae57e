"""The helper process: takes requests from a pipe, and forks a process with bounds for each.

It ends when the pipe does, whatever its parent died of.
"""

from __future__ import annotations

import errno
import gc
import os
import pickle
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable

from .bounds import Bounds, Failure
from .wire import receive, send

# A tenth of a core where all are busy. With 5, steps of ResNet-18 beside a compile took 1.3 of their time, some 6.
NICE = 10
LONGEST_REASON = 500


def _take_pipes() -> tuple[int, int]:
    """The pipes that came as standard input and output, which become nothing: others may write there."""
    requests, answers = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    os.close(nothing)
    return requests, answers


def _die_with_parent() -> None:
    """Beside the end of the pipe, which copies of it in other processes would keep open."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG


def _stand_back() -> None:
    """Lets the user's own work go first, and be the last to be killed where memory ends."""
    os.nice(NICE)
    if hasattr(os, "SCHED_BATCH"):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    try:
        with open("/proc/self/oom_score_adj", "w") as score:
            score.write("800")
    except OSError:
        pass


def _apart(compute: Callable[[], str]) -> str:
    """Computes in a forked process: threads of a driver that was opened here would be missing in those forked later."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        try:
            answer = pickle.dumps((compute(), ""))
        except Exception:
            answer = pickle.dumps(("", traceback.format_exc()))
        os.write(writing, answer)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        data = file.read()
    os.waitpid(child, 0)
    result, failure = pickle.loads(data)
    if failure:
        raise RuntimeError(failure)
    return result


def _prepare(command: list[str] | None) -> str:
    """Imports all that a compile needs; returns the digest of what programs depend on."""
    import torch_tinygrad

    torch_tinygrad.load()
    from tinygrad.helpers import PARALLEL

    from torch_tinygrad import cache, clang
    from torch_tinygrad.engine import compile, devices, kernel_cache, sizes  # noqa: F401

    clang.use(command)
    digest = _apart(lambda: cache.digest(devices.device_name(0)))
    PARALLEL.value = 0
    kernel_cache.close()
    gc.collect()
    gc.freeze()  # so that collections of forked processes do not touch, and thereby copy, all of it
    return digest


def _compiled(message: bytes, bounds: Bounds) -> bytes | Failure:
    """In the forked process: the program's bytes."""
    import torch

    from torch_tinygrad import clang
    from torch_tinygrad.choice import is_host
    from torch_tinygrad.engine import compile, devices, plans, remote, sizes

    try:
        trace, varying, device_index, seen, settings = pickle.loads(message)
        torch.set_default_dtype(settings["default_dtype"])
        clang.use(settings["clang"])
        if seen:
            data = sizes.compile_sizes(trace, seen, varying, device_index).to_bytes()
        elif is_host():
            data = compile.compile_trace(trace, varying, device_index).to_bytes()
        else:
            device = devices.device_name(device_index)
            plan = remote.plan_of(compile.scheduled(trace, set(varying), device))
            remote.build_kernels(plan, device)
            data = plans.to_bytes(plan)
        return Failure("the program cannot be written down", True) if data is None else data
    except MemoryError:
        return bounds.needs_too_much()
    except clang.NoClang as error:
        return Failure(str(error), False)
    except subprocess.CalledProcessError as error:
        if error.returncode == -signal.SIGXCPU:
            return bounds.took_too_long()
        return Failure(f"the C compiler failed: {error}", False)
    except OSError as error:
        return (
            bounds.needs_too_much()
            if error.errno == errno.ENOMEM
            else Failure(f"{type(error).__name__}: {error}", False)
        )
    except Exception as error:
        return Failure(f"{type(error).__name__}: {error}"[:LONGEST_REASON], True)


def _run_child(message: bytes, answer: int, bounds: Bounds) -> None:
    """Never returns."""
    code = 1
    try:
        _die_with_parent()
        bounds.apply()
        data = pickle.dumps(_compiled(message, bounds), protocol=5)
        with os.fdopen(answer, "wb") as file:
            file.write(data)
        code = 0
    finally:
        os._exit(code)


def _answer_to(message: bytes, requests: int, answers: int, bounds: Bounds) -> bytes | None:
    """The pickled outcome of a request; nothing where nobody waits for it any more."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        for pipe in (reading, requests, answers):
            os.close(pipe)
        _run_child(message, writing, bounds)
    os.close(writing)
    deadline, data, is_late = time.monotonic() + bounds.wall, bytearray(), False
    while True:
        readable, _, _ = select.select([reading, requests], [], [], max(0.0, deadline - time.monotonic()))
        if requests in readable:  # there is one request at a time: this is the end
            os.kill(child, signal.SIGKILL)
            return None
        if reading not in readable:
            os.kill(child, signal.SIGKILL)
            is_late = True
            break
        piece = os.read(reading, 1 << 20)
        if not piece:
            break
        data += piece
    os.close(reading)
    _, status = os.waitpid(child, 0)
    if is_late:
        return pickle.dumps(Failure(f"compiling has not ended after {bounds.wall:.0f} s", False))
    return bytes(data) if status == 0 else pickle.dumps(bounds.after_exit(status))


def main(parent: int, clang: list[str] | None) -> None:
    requests, answers = _take_pipes()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _die_with_parent()
    if os.getppid() != parent:
        return
    _stand_back()
    bounds = Bounds.from_environment()
    try:
        send(answers, pickle.dumps((_prepare(clang), "")))
    except Exception:
        send(answers, pickle.dumps(("", traceback.format_exc())))
        return
    while (message := receive(requests)) is not None:
        answer = _answer_to(message, requests, answers, bounds)
        if answer is None:
            return
        send(answers, answer)
