"""`python -m torch_tinygrad`: what is installed and found here, and whether it computes; ready for a bug report."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator

import torch


def described() -> Iterator[tuple[str, str]]:
    from importlib.metadata import PackageNotFoundError, version

    from . import __version__, cache, clang, tiny
    from .choice import chosen_device, is_host

    def installed(package: str) -> str:
        try:
            return version(package)
        except PackageNotFoundError:
            return "not installed"

    yield "torch-tinygrad", __version__
    yield "torch", torch.__version__
    yield "tinygrad", installed("tinygrad")
    yield "python", f"{platform.python_version()} ({platform.platform()})"
    memory = "the host's" if is_host() else "its own"
    yield "device", f"{chosen_device()}, {tiny.device_count()} of it, with {memory} memory"
    compiler = clang.command()
    yield "clang", " ".join(compiler) if compiler else f"none. {clang.REMEDIES}"
    yield "cache", cache.folder() or "none (TORCH_TINY_CACHE=0)"
    settings = {name: os.environ[name] for name in sorted(os.environ) if name.startswith(("TORCH_TINY_", "DEV"))}
    yield "settings", " ".join(f"{name}={value}" for name, value in settings.items()) or "none"


def checks() -> Iterator[tuple[str, str]]:
    """Small programs whose results must be the CPU's: what was wrong, or nothing."""
    from . import tiny

    def compared(program) -> str:
        try:
            torch.testing.assert_close(program("tiny").cpu(), program("cpu"), rtol=1e-4, atol=1e-5)
        except Exception as error:
            return f"{type(error).__name__}: {error}".partition("\n")[0]
        return ""

    def training(device: str) -> torch.Tensor:
        torch.manual_seed(0)
        weight = torch.randn(8, 4).to(device).requires_grad_()
        x = torch.arange(64.0).view(8, 8).to(device) / 64
        for _ in range(3):
            loss = (x @ weight).relu().square().mean()
            (gradient,) = torch.autograd.grad(loss, weight)
            weight = (weight - 0.1 * gradient).detach().requires_grad_()
        return weight.detach()

    def views(device: str) -> torch.Tensor:
        a = torch.arange(12.0).view(3, 4).to(device)
        a.t()[1:].mul_(2)
        a[1] = a[:, 0].sum()
        return a

    yield "views and writes", compared(views)
    with tiny.compile_mode("never"):
        yield "training, operator by operator", compared(training)
    before = tiny.stats()["compiles"] + tiny.stats()["loads"]
    with tiny.compile_mode("always"):
        wrong = compared(training)
    compiled = tiny.stats()["compiles"] + tiny.stats()["loads"] > before
    reasons = ", ".join(tiny.stats()["not_compiled"]) or "nothing was compiled"
    yield "training, compiled", wrong or ("" if compiled else reasons)


def main() -> int:
    import torch_tinygrad

    torch_tinygrad.load()
    for name, value in described():
        print(f"{name:<16}{value}", flush=True)
    failed = 0
    for name, wrong in checks():
        failed += bool(wrong)
        print(f"{name + ':':<32}{wrong or 'as on the CPU'}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
