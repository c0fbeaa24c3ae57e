"""The conformance command.

python -m torch_tinygrad.conformance [--op NAME]... [--dtype float32,...] [--samples N] [--shard i/n] [--jobs J]
                                     [--timeout S] [--minutes M] [--compile never] [--large] [--results FILE]
                                     [--report] [--check]
"""

from __future__ import annotations

import argparse
import datetime
import fnmatch
import json
import os
import sys
import time
from importlib.metadata import version
from pathlib import Path

from . import report
from .pool import Job, run_jobs
from .runner import ASPECTS

ROOT = Path(__file__).resolve().parents[2]


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m torch_tinygrad.conformance", description=report.__doc__)
    parser.add_argument("--op", action="append", default=[], help="operator by OpInfo name, or a pattern; repeatable")
    parser.add_argument("--dtype", default=",".join(report.SHORT), help="comma-separated dtypes")
    parser.add_argument("--aspect", default=",".join(ASPECTS), help="comma-separated aspects")
    parser.add_argument("--samples", type=int, default=6, help="samples an operator, spread evenly; 0 for all")
    parser.add_argument("--shard", default="1/1", help="i/n: every n-th operator, beginning with the i-th")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="worker processes")
    parser.add_argument("--timeout", type=float, default=180.0, help="seconds for one operator and dtype")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="what is not done by then is left out")
    parser.add_argument("--results", type=Path, help="a JSON line for each operator and dtype as it ends")
    parser.add_argument("--report", action="store_true", help="write docs/coverage.*: these rows replace older ones")
    parser.add_argument("--check", action="store_true", help="fail where something in docs/coverage.json now fails")
    parser.add_argument(
        "--compile", choices=("always", "never"), default="always", help="never: operators run directly through ATen"
    )
    parser.add_argument("--large", action="store_true", help="results are inferred as if all arguments were large")
    parser.add_argument("--verbose", action="store_true", help="print every failure in full")
    parser.add_argument("--device", default="tiny", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    os.environ["TORCH_TINY_COMPILE"] = options.compile  # the workers inherit it
    if options.large:
        os.environ["TORCH_TINY_ASK_BYTES"] = "0"
    return options


def full_name(info) -> str:
    return f"{info.name}.{info.variant_test_name}" if info.variant_test_name else info.name


def jobs_of(options: argparse.Namespace) -> list[Job]:
    """What to run: every operator for every dtype that its CPU kernel supports."""
    import torch
    from torch.testing._internal.common_methods_invocations import op_db

    shard, shards = map(int, options.shard.split("/"))
    aspects = tuple(a for a in ASPECTS if a in options.aspect.split(","))
    wanted = [
        (position, info)
        for position, info in enumerate(op_db)
        if not options.op or any(fnmatch.fnmatch(full_name(info), o) or info.name == o for o in options.op)
    ]
    unknown = [o for o in options.op if not any(fnmatch.fnmatch(full_name(i), o) or i.name == o for _, i in wanted)]
    if unknown:
        sys.exit(f"no operator named {', '.join(unknown)} in op_db")
    return [
        Job(position, full_name(info), dtype, aspects)
        for position, info in wanted[shard - 1 :: shards]
        for dtype in options.dtype.split(",")
        if getattr(torch, dtype) in info.supported_dtypes("cpu")
        or (dtype == "float32" and info.error_inputs_func is not None)
    ]


def lowered_names() -> set[str]:
    from torch_tinygrad.lower.registry import LOWERINGS

    return {name.removeprefix("aten::").split(".")[0] for name in LOWERINGS}


def show(done: int, total: int, job: Job, verbose: bool) -> None:
    failing = {aspect: o for aspect, o in job.outcomes.items() if report.passes(o) is False}
    state = (
        "ok" if not failing else " ".join(f"{a} {o['passed']}/{o['passed'] + o['failed']}" for a, o in failing.items())
    )
    print(f"[{done:4d}/{total}] {job.name} {job.dtype} {job.seconds:.1f}s {state}", flush=True)
    for aspect, outcome in failing.items():
        for failure in outcome["failures"] if verbose else outcome["failures"][:1]:
            print(f"        {aspect}: {failure if verbose else ' '.join(failure.split())[:200]}", flush=True)


def main(arguments: list[str] | None = None) -> int:
    options = options_of(arguments)
    jobs, lowered = jobs_of(options), lowered_names()
    operators: report.Operators = {}
    began, done = time.monotonic(), 0
    until = began + 60 * options.minutes
    finished = run_jobs(jobs, options.jobs, options.samples, options.device, options.timeout, until)
    for done, job in enumerate(finished, 1):
        show(done, len(jobs), job, options.verbose)
        if job.outcomes:
            row = {**job.outcomes, "how": report.how(job.outcomes, lowered), "seconds": round(job.seconds, 2)}
            operators.setdefault(job.name, {})[job.dtype] = row
            if options.results:
                with options.results.open("a") as lines:  # whole ones, whenever the command is ended
                    lines.write(json.dumps({"op": job.name, "dtype": job.dtype, **row}) + "\n")
    print(f"\n{done} of {len(jobs)} operator and dtype pairs in {time.monotonic() - began:.0f} s")
    print(report.totals_table(operators))
    if left_out := report.samples_left_out(operators):
        print(f"\n{left_out} samples left out: they are of types that the device lacks")
    before = report.load(ROOT / "docs" / "coverage.json")
    if options.report:
        merged = before["operators"]
        for name, rows in operators.items():
            merged[name] = {**merged.get(name, {}), **rows}
        report.write(document(merged, options), ROOT)
    if options.check:
        worse = report.regressions(before["operators"], operators)
        print("\n".join(["", f"{len(worse)} worse than docs/coverage.json", *worse]))
        return 1 if worse else 0
    return 0


def document(operators: report.Operators, options: argparse.Namespace) -> dict:
    return {
        "torch": version("torch"),
        "tinygrad": version("tinygrad"),
        "backend": os.environ.get("DEV", "CPU"),
        "samples": options.samples or "all",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "operators": operators,
    }


if __name__ == "__main__":
    sys.exit(main())
