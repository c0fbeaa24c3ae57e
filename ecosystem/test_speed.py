"""Small networks and operators beside eager PyTorch on the CPU: processor time of one thread, both in turns."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

ROOT = Path(__file__).parents[1]
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CPU_COUNT": "1", "THREADS": "0"}
Step = Callable[[], float]


def training(model: nn.Module, device: str, loss: Callable[[nn.Module], torch.Tensor]) -> Step:
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> float:
        optimizer.zero_grad()
        value = loss(model)
        value.backward()
        optimizer.step()
        return value.item()

    return step


def reading(call: Callable[[], torch.Tensor]) -> Step:
    def step() -> float:
        with torch.no_grad():
            return call().sum().item()

    return step


def gpt2(device: str) -> Step:
    import transformers

    config = transformers.GPT2Config(vocab_size=256, n_positions=64, n_embd=64, n_layer=2, n_head=4)
    ids = (torch.arange(128) * 7 % 256).view(2, 64).to(device)
    return training(transformers.GPT2LMHeadModel(config).eval(), device, lambda m: m(ids, labels=ids).loss)


def bert(device: str) -> Step:
    import transformers

    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    config = transformers.BertConfig(vocab_size=256, **sizes)
    model, ids = transformers.BertModel(config).eval().to(device), (torch.arange(128) * 7 % 256).view(2, 64).to(device)
    return reading(lambda: model(ids).last_hidden_state)


def vision(device: str) -> Step:
    import timm

    model = timm.create_model("resnet10t", num_classes=10).eval()
    x = torch.linspace(-1, 1, 4 * 3 * 64 * 64).view(4, 3, 64, 64).to(device)
    return training(model, device, lambda m: m(x).square().mean())


def graphs(device: str) -> Step:
    from torch_geometric.nn import GCNConv

    x, edges = torch.rand(200, 16).to(device), torch.randint(0, 200, (2, 800)).to(device)
    return training(GCNConv(16, 16), device, lambda m: m(x, edges).square().mean())


def blur(device: str) -> Step:
    import kornia

    images = torch.rand(2, 3, 64, 64).to(device)
    return reading(lambda: kornia.filters.gaussian_blur2d(images, (5, 5), (1.5, 1.5)))


def lstm(device: str) -> Step:
    x = torch.rand(16, 20, 16).to(device)
    return training(nn.LSTM(16, 32, batch_first=True), device, lambda m: m(x)[0].square().mean())


def sparse(device: str) -> Step:
    matrix, dense = (torch.rand(256, 256) < 0.05).float().to_sparse_csr().to(device), torch.rand(256, 64).to(device)
    return reading(lambda: matrix @ dense)


def sparse_gradients(device: str) -> Step:
    model, rows = nn.Embedding(1000, 32, sparse=True).to(device), torch.arange(64).to(device) * 7
    optimizer = torch.optim.SparseAdam(model.parameters())

    def step() -> float:
        optimizer.zero_grad()
        loss = model(rows).square().mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def quantized(device: str) -> Step:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).eval()
    model = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}).to(device)
    x = torch.rand(32, 64).to(device)
    return reading(lambda: model(x))


def jagged(device: str) -> Step:
    rows = [torch.rand(n, 32).to(device) for n in (5, 9, 17)]
    layer = nn.Linear(32, 32).to(device)
    return reading(lambda: layer(torch.nested.nested_tensor(rows, layout=torch.jagged)).values())


CASES = {
    "transformers: GPT-2, a training step": gpt2,
    "transformers: BERT, inference": bert,
    "timm: a ResNet, a training step": vision,
    "torch-geometric: GCNConv, a training step": graphs,
    "kornia: Gaussian blur": blur,
    "nn.LSTM, a training step": lstm,
    "sparse CSR @ dense": sparse,
    "an embedding with sparse gradients, SparseAdam": sparse_gradients,
    "torch.ao, dynamically quantized layers": quantized,
    "jagged tensors, a linear layer": jagged,
}


def ratio(make: Callable[[str], Step]) -> float:
    """Of a step on the device to one on the CPU."""
    torch.set_num_threads(1)
    steps = []
    for device in ("cpu", "tiny"):
        torch.manual_seed(0)
        steps.append(make(device))
    for _ in range(8):
        values = [step() for step in steps]
        torch.tiny.wait_for_compiles()
    assert abs(values[0] - values[1]) <= 1e-3 * max(1, abs(values[0])), values
    ratios = []
    for _ in range(15):
        took = []
        for step in steps:
            begin = time.thread_time()
            for _ in range(5):
                step()
            took.append(time.thread_time() - begin)
        ratios.append(took[1] / took[0])
    return statistics.median(ratios)


@pytest.mark.parametrize("name", CASES)
def test_beside_the_cpu(name, record_property):
    program = f"from ecosystem.test_speed import CASES, ratio; print('RATIO', ratio(CASES[{name!r}]))"
    code = f"import ecosystem.conftest; {program}"
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, **ONE_THREAD, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    found = float(done.stdout.partition("RATIO")[2])
    words = "works" if found <= 1 else "works, slower than the CPU"
    record_property("said", f"{words}: {found:.2g} of its time")
