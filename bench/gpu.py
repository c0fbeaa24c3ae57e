"""`DEV=CUDA python -m bench.gpu`: one GPU, four ways: plain eager code on `tiny`, the same code in PyTorch's own CUDA
backend, the same under Inductor, and the same network written for tinygrad under TinyJit. Each contender runs in a
process of its own: PyTorch knows one accelerator a process, so its CUDA backend is measured without ours.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from .gpu_networks import NETWORKS

TINY, EAGER, TINYJIT, INDUCTOR = "tiny", "eager CUDA", "TinyJit", "Inductor"
DEVICES = {TINY: "tiny", EAGER: "cuda", INDUCTOR: "cuda"}

# A step does one unit of work and waits for it.
Step = Callable[[], Any]

ELEMENTS = 64 << 20
ROWS = (16384, 4096)


def chain(x):
    """Seven elementwise operations."""
    y = (x * 2.0 + 1.0).relu()
    return (y * 0.5 - 0.25).abs().sqrt()


def waiting(device: str, work: Callable[[], torch.Tensor]) -> Step:
    wait = torch.tiny.synchronize if device == "tiny" else torch.cuda.synchronize

    def step() -> None:
        kept = work()
        wait()
        del kept

    return step


def cnn(device: str) -> Step:
    from .cnn import demo_network

    torch.manual_seed(0)
    model = demo_network().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    images, labels = torch.randn(512, 1, 28, 28).to(device), torch.randint(0, 10, (512,)).to(device)

    def step() -> float:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def cnn_tinyjit() -> Step:
    from tinygrad import Context, Tensor, TinyJit
    from tinygrad.nn.optim import Adam
    from tinygrad.nn.state import get_parameters

    from .tinygrad_networks import DemoNetwork

    model = DemoNetwork()
    images, labels = Tensor.randn(512, 1, 28, 28).realize(), Tensor.randint(512, high=10).realize()
    optimizer = Adam(get_parameters(model), lr=1e-3)

    @TinyJit
    def step() -> Tensor:
        with Context(TRAINING=1):
            optimizer.zero_grad()
            loss = model(images).sparse_categorical_crossentropy(labels).backward()
            return loss.realize(*optimizer.schedule_step())

    return lambda: step().item()


def elementwise(device: str) -> Step:
    x = torch.rand(ELEMENTS).to(device)
    return waiting(device, lambda: chain(x))


def elementwise_tinyjit() -> Step:
    from tinygrad import Device, Tensor, TinyJit

    x = Tensor.rand(ELEMENTS).realize()
    run = TinyJit(lambda x: chain(x).realize())

    def step() -> None:
        run(x)
        Device[Device.DEFAULT].synchronize()

    return step


def copying(device: str) -> Step:
    x, y = torch.rand(ELEMENTS).to(device), torch.rand(ELEMENTS).to(device)
    return waiting(device, lambda: y.copy_(x))


def softmax(device: str) -> Step:
    x = torch.rand(ROWS).to(device)
    return waiting(device, lambda: x.softmax(-1))


def layer_norm(device: str) -> Step:
    x, norm = torch.rand(ROWS).to(device), nn.LayerNorm(ROWS[1]).to(device)

    def work() -> torch.Tensor:
        with torch.no_grad():
            return norm(x)

    return waiting(device, work)


def matmul(device: str) -> Step:
    a, b = torch.rand(4096, 4096).to(device), torch.rand(4096, 4096).to(device)
    return waiting(device, lambda: a @ b)


def decoding(device: str) -> Step:
    """One token of a six-layer GPT with a key-value cache."""
    from .gpt import GPT, Size

    size = Size()
    torch.manual_seed(0)
    model = GPT(size).to(device).eval()
    shape = (1, size.heads, size.context, size.width // size.heads)
    caches = [[torch.zeros(shape, device=device) for _ in range(2)] for _ in range(size.layers)]
    state: dict[str, Any] = {"token": torch.zeros(1, 1, dtype=torch.long, device=device), "position": 0}

    def step() -> int:
        with torch.no_grad():
            state["token"] = model.decode(state["token"], caches, state["position"] % size.context)
        state["position"] += 1
        return state["token"].item()

    return step


def decoding_tinyjit() -> Step:
    from dataclasses import astuple

    from tinygrad import Tensor, TinyJit, Variable

    from .gpt import Size
    from .tinygrad_networks import GPT as Written

    size = Size()
    model = Written(*astuple(size))
    shape = (1, size.heads, size.context, size.width // size.heads)
    caches = [tuple(Tensor.zeros(*shape).contiguous().realize() for _ in range(2)) for _ in range(size.layers)]
    decode = TinyJit(lambda token, position: model.decode(token, caches, position).realize())
    place = Variable("position", 0, size.context - 1)
    state: dict[str, Any] = {"token": Tensor([[0]]).contiguous().realize(), "position": 0}

    def step() -> int:
        state["token"] = decode(state["token"], place.bind(state["position"] % size.context)).clone().realize()
        state["position"] += 1
        return state["token"].item()

    return step


# name → (what it does on a torch device, the same under TinyJit or None, steps timed)
WORKLOADS: dict[str, tuple[Callable[[str], Step], Callable[[], Step] | None, int]] = {
    "CNN, training with Adam, batch 512": (cnn, cnn_tinyjit, 50),
    "seven elementwise operations, 64 Mi floats": (elementwise, elementwise_tinyjit, 50),
    "copy of 64 Mi floats": (copying, None, 50),
    "softmax over rows of 4096, 64 Mi floats": (softmax, None, 50),
    "layer norm over rows of 4096, 64 Mi floats": (layer_norm, None, 50),
    "matrix product, 4096, float32": (matmul, None, 20),
    "GPT, one token decoded": (decoding, decoding_tinyjit, 40),
    **{name: (on_device, None, count) for name, (on_device, count) in NETWORKS.items()},
}


def measure(name: str, contender: str) -> dict[str, Any]:
    on_device, jitted, count = WORKLOADS[name]
    if contender == TINY and not hasattr(torch, "tiny"):  # run from a checkout that is not installed
        import torch_tinygrad

        torch_tinygrad.load()
    begin = time.perf_counter()
    step = jitted() if contender == TINYJIT and jitted is not None else on_device(DEVICES[contender])
    if contender == INDUCTOR:
        step = torch.compile(step)
    step()
    first = time.perf_counter() - begin
    for _ in range(4):
        step()
    if contender == TINY:
        torch.tiny.wait_for_compiles()
        for _ in range(4):
            step()
        torch.tiny.wait_for_compiles()
        for _ in range(3):
            step()
    warm = time.perf_counter() - begin
    times = []
    for _ in range(count):
        start = time.perf_counter()
        step()
        times.append((time.perf_counter() - start) * 1e3)
    found = {"median": statistics.median(times), "least": min(times), "first": first, "warm": warm}
    if contender == TINY:
        found["stats"] = torch.tiny.stats()
        found["bytes"] = torch.cuda.max_memory_allocated()
    elif contender != TINYJIT:
        found["bytes"] = torch.cuda.max_memory_allocated()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", default=[""], help="parts of workload names")
    contenders = [TINY, EAGER, TINYJIT, INDUCTOR]
    parser.add_argument("--contenders", nargs="+", default=contenders, choices=contenders)
    parser.add_argument("--timeout", type=int, default=240, help="seconds for a workload of a contender")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print("RESULT" + json.dumps(measure(*arguments.child)))
        return
    print("| workload | " + " | ".join(f"{c}, ms" for c in arguments.contenders) + " |")
    print("| --- |" + " --- |" * len(arguments.contenders), flush=True)
    for name, (_, jitted, _) in WORKLOADS.items():
        if not any(word in name for word in arguments.only):
            continue
        cells = []
        for contender in arguments.contenders:
            if contender == TINYJIT and jitted is None:
                cells.append("")
                continue
            command = [sys.executable, "-m", "bench.gpu", "--child", name, contender]
            environment = os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "1" if contender == TINY else "0"}
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=arguments.timeout)
            lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT")]
            if not lines:
                print(done.stderr[-3000:], file=sys.stderr, flush=True)
                cells.append("failed")
                continue
            found = json.loads(lines[0].removeprefix("RESULT"))
            print(name, contender, found, file=sys.stderr, flush=True)
            cells.append(f"{found['median']:.3f}")
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
