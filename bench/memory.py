"""Peak memory of training steps: bytes of tensors alive at once, on the CPU as PyTorch's profiler counts them and on
`tiny` as the device does, each in a process of its own."""

from __future__ import annotations

from .part import Table, run, said

PROGRAM = """
import json, tempfile
import torch
from bench.cnn import batch, classification, demo_network
from bench.gpt import SMALL, GPT, Size
from bench.training import torch_training
from torch.nn import functional as F

def cnn(quick):
    return demo_network(), classification, batch(8 if quick else 64, 1, 28)

def gpt(quick):
    size = SMALL if quick else Size()
    tokens = torch.randint(0, size.vocabulary, (8, size.context + 1))
    loss = lambda model, inputs: F.cross_entropy(model(inputs[0]), inputs[1])
    return GPT(size), loss, [tokens[:, :-1].contiguous(), tokens[:, 1:].flatten()]

def peak_on_cpu(steps):
    # Only what is allocated while it profiles is counted: from the model on.
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as found:
        steps()
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        found.export_chrome_trace(file.name)
        events = json.load(open(file.name))["traceEvents"]
    return max(e["args"]["Total Allocated"] for e in events if e["name"] == "[memory]")

def peak_on_tiny(steps):
    steps()
    torch.tiny.synchronize()
    return torch.tiny.max_memory_allocated()

def steps():
    step = torch_training(model, loss, inputs)({device!r}, False)
    for _ in range(4):
        step()

torch.manual_seed(0)
model, loss, inputs = {network}({quick})
print("BYTES", {{"cpu": peak_on_cpu, "tiny": peak_on_tiny}}[{device!r}](steps))
"""

NETWORKS = {"demo CNN, batch 64": "cnn", "GPT, batch 8": "gpt"}


def peak(network: str, device: str, quick: bool) -> int:
    program = PROGRAM.format(network=network, device=device, quick=quick)
    return int(said(program, "BYTES")[0])


def measure(quick: bool) -> Table:
    table = Table(
        "Peak memory",
        "Megabytes of tensors alive at once in a training step: parameters, gradients, activations, temporaries. Goal: "
        "at most 1.3 of eager's.",
        ["network", "eager CPU MB", "tiny MB", "ratio"],
    )
    for name, network in NETWORKS.items():
        eager, tiny = (peak(network, device, quick) for device in ("cpu", "tiny"))
        table.add(name, f"{eager / 1e6:.1f}", f"{tiny / 1e6:.1f}", f"{tiny / eager:.2f}")
        table.figures[name] = {"eager": eager, "tiny": tiny}
    return table


if __name__ == "__main__":
    run(measure, __doc__)
