"""Runs random programs on both devices for a number of minutes and prints a minimal reproducer of each difference.

    python -m tests.fuzz --minutes 60 [--seed 0] [--ways mixed]
    python -m tests.fuzz --loops       loops whose steps read each other's results: compiling grows with their length
    python -m tests.fuzz --sizes       programs for any size, at one size after another
    python -m tests.fuzz --training    networks with views and writes, their gradients and an optimizer

Programs run in a worker process, in batches, so that a crash or a hang costs one program and is reported like any
other difference. What they compile is kept on disk, and every second one finds there what others left. Exits with 1
when something was found.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time

BATCH = 100
SECONDS_A_PROGRAM = 120
KINDS = ("loops", "sizes", "training")


def work(first: int, count: int, steps: int) -> None:
    """Runs seeds in turn, a JSON line each: what began, and how it ended."""
    from tests.grammar import random_program
    from tests.programs import Different, fails, minimal
    from torch_tinygrad import _C

    for seed in range(first, first + count):
        print(json.dumps({"began": seed}), flush=True)
        if seed % 2:
            _C.clear_programs()
        try:
            print(json.dumps({"seed": seed, "steps": len(random_program(seed, steps).lines)}), flush=True)
        except Different as different:
            print(
                json.dumps(
                    {"seed": seed, "steps": len(different.lines), "lines": different.lines, "error": str(different)}
                ),
                flush=True,
            )
            lines = minimal(different.lines) if fails(different.lines) else different.lines
            found = {"seed": seed, "shortened": lines, "error": fails(lines) or str(different)}
            print(json.dumps(found), flush=True)


def work_on(kind: str, first: int, count: int) -> None:
    """The same for random loops, of which one that grows too fast is a difference too, programs for any size, or
    training."""
    programs = importlib.import_module(f"tests.random_{kind}")
    for seed in range(first, first + count):
        print(json.dumps({"began": seed}), flush=True)
        lines = programs.random_lines(seed)
        try:
            programs.check(lines, seed)
            print(json.dumps({"seed": seed, "steps": len(lines)}), flush=True)
        except AssertionError as error:
            print(json.dumps({"seed": seed, "steps": len(lines), "shortened": lines, "error": str(error)}), flush=True)


def program_of(seed: int, steps: int, kind: str) -> list[str]:
    """The lines of a seed, without the device: the grammar looks at the CPU alone."""
    code = f"from tests.grammar import random_program; print('\\n'.join(random_program({seed}, {steps}).lines))"
    if kind:
        code = f"from tests.random_{kind} import random_lines; print('\\n'.join(random_lines({seed})))"
    environment = {**os.environ, "TORCH_TINY_TEST_DEVICE": "cpu"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def run_batch(first: int, count: int, steps: int, kind: str, deadline: float):
    """Yields the worker's messages; a crash or a hang becomes a message of its own."""
    command = [sys.executable, "-m", "tests.fuzz", "--worker", str(first), str(count), "--steps", str(steps)]
    command += ["--ways", os.environ["TORCH_TINY_COMPILE"]] + [f"--{kind}"] * bool(kind)
    worker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    messages: queue.Queue[str | None] = queue.Queue()

    def listen():
        for line in worker.stdout:
            messages.put(line)
        messages.put(None)

    threading.Thread(target=listen, daemon=True).start()
    began = first
    try:
        while time.monotonic() < deadline:
            try:
                line = messages.get(timeout=SECONDS_A_PROGRAM)
            except queue.Empty:
                yield {"seed": began, "steps": 0, "crash": f"no end in {SECONDS_A_PROGRAM} seconds"}
                return
            if line is None:
                if worker.wait() != 0:
                    yield {"seed": began, "steps": 0, "crash": f"the process ended with {worker.returncode}"}
                return
            if line.startswith("{"):
                message = json.loads(line)
                began = message.get("began", began)
                yield message
    finally:
        worker.kill()
        worker.wait()


def show(title: str, lines: list[str], error: str) -> None:
    print(f"\n== {title}\n" + "\n".join(f"    {line}" for line in lines) + f"\n  {error}\n", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=int(time.time()) % 1_000_000 * 1000, help="first program")
    parser.add_argument("--steps", type=int, default=30, help="most steps of a program")
    parser.add_argument(
        "--ways", choices=("always", "never", "mixed"), default="mixed", help="flushes compile, run directly, or draw"
    )
    parser.add_argument("--loops", action="store_true", help="random loops instead, always compiled")
    parser.add_argument("--sizes", action="store_true", help="programs for any size instead, always compiled")
    parser.add_argument("--training", action="store_true", help="training loops instead, batches of any size")
    parser.add_argument("--worker", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    kind = next((kind for kind in KINDS if getattr(options, kind)), "")
    os.environ["TORCH_TINY_COMPILE"] = "always" if kind in ("loops", "sizes") else options.ways
    os.environ["TORCH_TINY_SIZES"] = "1" if kind in ("sizes", "training") else "0"
    if options.worker and kind:
        work_on(kind, *options.worker)
        return 0
    if options.worker:
        work(*options.worker, options.steps)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCH_TINY_CACHE"] = folder
        return search(options, kind)


def search(options: argparse.Namespace, kind: str) -> int:
    """Draws programs until the time is up."""
    deadline = time.monotonic() + options.minutes * 60
    programs = steps = found = 0
    seed, shown = options.seed, time.monotonic()
    print(f"programs from seed {seed} for {options.minutes:g} minutes", flush=True)
    while time.monotonic() < deadline:
        following = seed + BATCH
        for message in run_batch(seed, BATCH, options.steps, kind, deadline):
            if "steps" in message:
                programs, steps = programs + 1, steps + message["steps"]
            if "shortened" in message:
                found += 1
                show(f"difference {found}, seed {message['seed']}", message["shortened"], message["error"])
            if "crash" in message:
                found += 1
                show(
                    f"crash {found}, seed {message['seed']}",
                    program_of(message["seed"], options.steps, kind),
                    message["crash"],
                )
                following = message["seed"] + 1
            if time.monotonic() - shown > 10:
                shown = time.monotonic()
                left = max(deadline - shown, 0) / 60
                print(f"{programs} programs, {steps} steps, {found} found, {left:.1f} minutes left", flush=True)
        seed = following
    print(f"{programs} programs, {steps} steps, {found} found")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
