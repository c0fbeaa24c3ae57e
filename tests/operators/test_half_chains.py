"""Chains of operators in half types: each operator of a fused kernel rounds its result as the CPU's does, bit for bit.
All of these the CPU computes in float32 and rounds once."""

from __future__ import annotations

import random

import pytest
import torch

from tests.differential import DEVICE

OPERATORS = [
    "x+y",
    "x*y",
    "x-y",
    "x/(y.abs()+1)",
    "x*0.3",
    "x+0.7",
    "x.abs()",
    "-x",
    "x.sqrt().nan_to_num(0)",
    "x.exp().clamp(max=50)",
    "x.sin()",
    "x.cos()",
    "x.tanh()",
    "x.sigmoid()",
    "x.relu()",
    "torch.maximum(x,y)",
    "torch.minimum(x,y)",
    "x.clamp(-2,2)",
    "torch.where(x>y,x,y)",
    "x*x",
    "x.log1p().nan_to_num(0)",
    "x.square()",
    "x.reciprocal().clamp(-9,9)",
    "torch.add(x,y,alpha=0.3)",
    "x.floor()",
    "x.round()",
    "x.frac()",
    "torch.lerp(x,y,0.3)",
    "x.neg()",
    "torch.addcmul(x,y,y)",
    "x%3",
    "x.sign()",
    "x.rsqrt().nan_to_num(0,0,0)",
    "x.atan()",
    "x.pow(2)",
    "x.pow(3)",
    "torch.nn.functional.leaky_relu(x,0.1)",
    "x.masked_fill(x>1,0.5)",
    "torch.hypot(x,y)",
]


def run(lines: list[str], dtype: torch.dtype, seed: int, device: str) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x, y = (torch.randn(256, generator=generator).to(dtype).to(device) for _ in range(2))
    results = []
    for line in lines:
        x = eval(line, {"torch": torch, "x": x, "y": y})
        results.append(x)
    return [r.cpu() for r in results]


@pytest.mark.parametrize("seed", range(16))
def test_every_operator_of_a_chain_rounds(seed: int) -> None:
    choose = random.Random(seed)
    dtype = choose.choice([torch.float16, torch.bfloat16])
    lines = [choose.choice(OPERATORS) for _ in range(choose.randrange(2, 7))]
    with torch.tiny.compile_mode("always"):
        found = run(lines, dtype, seed, DEVICE)
    for line, got, want in zip(lines, found, run(lines, dtype, seed, "cpu"), strict=True):
        assert torch.equal(got.nan_to_num(7), want.nan_to_num(7)), (line, lines, dtype)
