"""Matrix products: square, batched, and with an epilogue."""

from __future__ import annotations

from torch.nn import functional as F

from .fused import normal
from .harness import Contenders, Settings, function_contenders, workload

GOALS = (1.05, 0.2, 1.1)


def product(a, b):
    return a @ b


def _register(size: int) -> None:
    @workload(f"matmul {size}", "matmul", GOALS)
    def build(settings: Settings) -> Contenders:
        n = min(size, 512) if settings.quick else size
        return function_contenders(product, product, [normal(n, n), normal(n, n, seed=1)])


for _size in (256, 512, 1024, 2048):
    _register(_size)


@workload("matmul, batch of 32, 256", "matmul", GOALS)
def batched(settings: Settings) -> Contenders:
    return function_contenders(product, product, [normal(32, 256, 256), normal(32, 256, 256, seed=1)])


@workload("matmul 1024 + bias + GELU", "matmul", GOALS)
def epilogue(settings: Settings) -> Contenders:
    n = 256 if settings.quick else 1024
    weight, bias = normal(n, n, seed=1) * n**-0.5, normal(n, seed=2)

    def with_torch(x, weight, bias):
        return F.gelu(F.linear(x, weight, bias), approximate="tanh")

    def with_tinygrad(x, weight, bias):
        return (x @ weight.T + bias).gelu()

    return function_contenders(with_torch, with_tinygrad, [normal(n, n), weight, bias])
