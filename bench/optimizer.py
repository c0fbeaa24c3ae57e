"""AdamW, in its default (foreach) form, on 10 million parameters in 150 tensors."""

from __future__ import annotations

import torch

from .harness import TINYJIT, Contenders, Settings, Step, torch_contenders, workload

TENSORS = 150


def shapes(total: int) -> list[tuple[int, ...]]:
    """As in a network: a third of the tensors are biases, the rest matrices of a few sizes."""
    matrices = TENSORS * 2 // 3
    side = int((total / matrices) ** 0.5)
    sizes = [(side * 3 // 2, side), (side, side), (side // 2, side)]
    return [sizes[i % 3] if i % 3 != 2 or i % 2 else (side,) for i in range(TENSORS)]


@workload("AdamW, 10 M parameters in 150 tensors", "optimizer", (0.5, 1.05, 1.1))
def adamw(settings: Settings) -> Contenders:
    random = torch.Generator().manual_seed(0)
    sizes = shapes(1_000_000 if settings.quick else 10_000_000)
    start = [torch.randn(s, generator=random) for s in sizes]
    gradients = [torch.randn(s, generator=random) for s in sizes]

    def make(device: str, compiled: bool) -> Step:
        parameters = [p.clone().to(device).requires_grad_() for p in start]
        for p, g in zip(parameters, gradients, strict=True):
            p.grad = g.to(device)
        # Inductor needs the step count and the rate as tensors, or it compiles for each value.
        optimizer = torch.optim.AdamW(parameters, lr=torch.tensor(1e-3) if compiled else 1e-3)
        update = torch.compile(optimizer.step) if compiled else optimizer.step

        def step() -> list[torch.Tensor]:
            update()
            return parameters[:4]

        return step

    def tinyjit() -> Step:
        from tinygrad import Context, TinyJit
        from tinygrad.nn.optim import AdamW

        from .tinygrad_side import finished, tensor

        parameters = [tensor(p) for p in start]
        for p, g in zip(parameters, gradients, strict=True):
            p.grad = tensor(g)
        optimizer = AdamW(parameters, lr=1e-3, eps=1e-8, weight_decay=0.01, fused=False)

        @TinyJit
        def update() -> None:
            with Context(TRAINING=1):
                optimizer.step()

        def step() -> list:
            update()
            return finished(parameters[:4])

        return step

    return {**torch_contenders(make), TINYJIT: tinyjit}
