"""Elementwise chains on 16 Mi floats: what fusion alone is worth."""

from __future__ import annotations

import torch

from .harness import Contenders, Settings, function_contenders, workload

PLAIN, WITH_FUNCTIONS = (0.2, 1.05, 1.0), (0.8, 1.05, 1.5)


def inputs(settings: Settings) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    return [torch.randn((1 if settings.quick else 16) * 2**20, generator=random) for _ in range(2)]


def plain(rounds: int):
    """Five operations a round, and one more: what both libraries spell alike is written once."""

    def chain(x, y):
        for i in range(rounds):
            x = (x * y + (0.5 + i)) * 0.25 - y
            x = x.relu() if i % 2 else x
        return x.abs()

    return chain


def functions(rounds: int):
    """Operations of which every fourth is transcendental."""

    def chain(x, y):
        for i in range(rounds):
            x = (x * 0.5 + y) * (0.1 + 0.01 * i)
            x = x.tanh() if i % 2 else x.sigmoid()
        return x.exp()

    return chain


def _register(name: str, chain, goals) -> None:
    @workload(name, "chains", goals)
    def build(settings: Settings) -> Contenders:
        return function_contenders(chain, chain, inputs(settings))


_register("chain of 6", plain(1), PLAIN)
_register("chain of 20", plain(4), PLAIN)
_register("chain of 6 with exp and sigmoid", functions(1), WITH_FUNCTIONS)
_register("chain of 20 with exp, tanh and sigmoid", functions(4), WITH_FUNCTIONS)
