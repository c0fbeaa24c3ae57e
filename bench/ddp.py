"""DistributedDataParallel over gloo: a training step on `tiny` against the CPU's, in the same processes.

Both contenders take turns in two real processes of one thread each, so that each round meets the same neighbours. Wall
clock and processor time are compared: a step waits for the other process's gradients.
"""

from __future__ import annotations

import datetime
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from .cnn import demo_network
from .contender import ONE_THREAD
from .part import Table, run

RANKS, GOAL = 2, 1.0
STEPS = 8


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "demo CNN, 32 images a process": (demo_network, (32, 1, 28, 28)),
    "three layers of 512, 64 rows a process": (perceptron, (64, 256)),
}


def step_on(device: str, network: str) -> Callable[[], float]:
    make, shape = NETWORKS[network]
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(make().to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    torch.manual_seed(dist.get_rank())
    x, y = torch.randn(shape).to(device), torch.randint(0, 10, shape[:1]).to(device)

    def step() -> float:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def serve(network: str, rounds: int) -> None:
    """One of the processes. The first prints the last losses, and seconds a step by device, round by round."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=300))
    steps = {device: step_on(device, network) for device in ("cpu", "tiny")}
    for _ in range(12):
        losses = {device: step() for device, step in steps.items()}
        torch.tiny.wait_for_compiles()
    found: dict[str, list[tuple[float, float]]] = {device: [] for device in steps}
    compiles = torch.tiny.stats()["compiles"]
    for _ in range(rounds):
        for device, step in steps.items():
            dist.barrier()
            begin, used = time.perf_counter(), time.process_time()
            for _ in range(STEPS):
                step()
            found[device].append(((time.perf_counter() - begin) / STEPS, (time.process_time() - used) / STEPS))
    if dist.get_rank() == 0:
        again = torch.tiny.stats()["compiles"] - compiles
        print("FOUND", json.dumps({"losses": losses, "times": found, "compiles": again}), flush=True)
    dist.destroy_process_group()


def found_in(network: str, rounds: int) -> dict:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    command += ["-m", "bench.ddp", "--serve", network, str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **ONE_THREAD})
    for line in done.stdout.splitlines():
        if line.startswith("FOUND "):
            return json.loads(line.partition(" ")[2])
    raise RuntimeError(f"the processes did not end well: {done.stderr[-800:]}")


def measure(quick: bool) -> Table:
    table = Table(
        "DistributedDataParallel",
        f"Two processes of one thread over gloo, SGD with momentum: milliseconds a step, medians of rounds of {STEPS} "
        f"steps in turns. Goal: at most {GOAL} of the CPU's wall clock.",
        ["network", "CPU", "tiny", "tiny / CPU", "processor time", "losses differ by", "compiles again"],
    )
    for network in NETWORKS:
        found = found_in(network, 3 if quick else 21)
        pairs = list(zip(found["times"]["tiny"], found["times"]["cpu"], strict=True))
        wall, used = (statistics.median(tiny[i] / cpu[i] for tiny, cpu in pairs) for i in (0, 1))
        cpu, tiny = (1e3 * statistics.median(t for t, _ in found["times"][d]) for d in ("cpu", "tiny"))
        apart = abs(found["losses"]["tiny"] - found["losses"]["cpu"])
        table.add(network, f"{cpu:.2f}", f"{tiny:.2f}", f"{wall:.2f}", f"{used:.2f}", f"{apart:.0e}", found["compiles"])
        table.figures[network] = {"wall": wall, "processor": used}
    return table


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2], int(sys.argv[3]))
    else:
        run(measure, __doc__)
