"""`python -m bench`: runs the workloads, contenders in processes of their own; writes the tables, the plot and JSON."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from . import contender, harness, report

ALONE = (
    "setitem",
    "record",
    "train",
    "startup",
    "first",
    "memory",
    "growth",
    "loops",
    "choices",
    "compiled",
    "ddp",
    "small_steps",
)
ROOT = Path(__file__).resolve().parent.parent


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="NAME", help="groups, or parts of workload names, in any case"
    )
    parser.add_argument("--repeats", type=int, default=7, help="rounds over all contenders (default: %(default)s)")
    parser.add_argument("--json", metavar="FILE", help="write the results there")
    parser.add_argument("--quick", action="store_true", help="small sizes and two rounds: does everything run?")
    parser.add_argument("--no-inductor", action="store_true", help="leave torch.compile out")
    parser.add_argument("--no-tinyjit", action="store_true", help="leave tinygrad itself out")
    parser.add_argument("--write", action="store_true", help="renew the tables and the plot in docs/")
    parser.add_argument(
        "--timeout",
        type=int,
        default=900,
        help="seconds a contender's first steps may take, or a part of the suite (default: %(default)s)",
    )
    parser.add_argument(
        "--one-thread", action="store_true", help="processor time of one thread: repeats even on a loaded machine"
    )
    parser.add_argument("--list", action="store_true", help="name the workloads and stop")
    return parser.parse_args()


def settings_of(arguments: argparse.Namespace) -> harness.Settings:
    without = {harness.INDUCTOR} if arguments.no_inductor else set()
    without |= {harness.TINYJIT} if arguments.no_tinyjit else set()
    return harness.Settings(
        repeats=2 if arguments.quick else arguments.repeats,
        quick=arguments.quick,
        contenders=tuple(c for c in harness.ORDER if c not in without),
        budget_seconds=5 if arguments.quick else 20,
        patience=arguments.timeout,
        one_thread=arguments.one_thread,
    )


def spawn(module: list[str], arguments: argparse.Namespace, file: str) -> dict | None:
    """Runs a part of the suite in a process of its own; what it wrote, or None."""
    command = [sys.executable, "-m", *module, "--json", file]
    command += ["--quick"] if arguments.quick else []
    environment = {**os.environ, **(contender.ONE_THREAD if arguments.one_thread else {})}
    try:
        finished = subprocess.run(
            command, cwd=ROOT, timeout=arguments.timeout, capture_output=True, text=True, env=environment
        )
    except subprocess.TimeoutExpired:
        print(f"  took longer than {arguments.timeout} s")
        return None
    if finished.stderr.strip() and (finished.returncode or "Traceback" in finished.stderr):
        print(finished.stderr.strip()[-2000:])
    if not os.path.exists(file) or not os.path.getsize(file):
        return None
    return json.loads(Path(file).read_text())


def main() -> None:
    arguments = parse()
    contender.load_groups()
    groups = {*ALONE, *(w.group for w in harness.WORKLOADS.values())}
    only = {word: word in groups for word in map(str.lower, arguments.only)}
    wanted = [w for w in harness.WORKLOADS.values() if _selected(w.name, w.group, only)]
    parts = [p for p in ALONE if _selected(p, p, only)]
    if arguments.list:
        print("\n".join([*(f"{w.group:10} {w.name}" for w in wanted), *parts]))
        return
    if not wanted and not parts:
        sys.exit(f"nothing is called {' '.join(arguments.only)}; --list names the workloads")
    results: dict = {"machine": report.machine(), "workloads": [], "parts": {}}
    print(report.TABLE_HEAD)
    with tempfile.TemporaryDirectory() as folder:
        for work in wanted:
            found = harness.measure(work, settings_of(arguments)).as_dict()
            results["workloads"].append(found)
            print(report.table_row(found), flush=True)
            save(results, arguments.json)
        for part in parts:
            print(f"\n{part}", flush=True)
            found = spawn([f"bench.{part}"], arguments, f"{folder}/{part}.json")
            if found is not None:
                results["parts"][part] = found
                print(report.part_table(part, found), flush=True)
    results["machine"]["clock"] = "processor time of one thread" if arguments.one_thread else "wall clock, all cores"
    results["machine"]["load_after"] = os.getloadavg()[0]
    save(results, arguments.json)
    if arguments.write:
        report.write(results, ROOT / "docs")


def save(results: dict, file: str | None) -> None:
    """After each workload: a suite that is stopped keeps what it measured."""
    if file:
        Path(file).write_text(json.dumps(results, indent=1))


def _selected(name: str, group: str, only: dict[str, bool]) -> bool:
    """Whether one of these words names it: a group's name that group alone, any other what has it in its name."""
    return not only or any(word == group if is_group else word in name.lower() for word, is_group in only.items())


if __name__ == "__main__":
    main()
