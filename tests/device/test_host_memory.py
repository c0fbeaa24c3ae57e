"""The host's memory behind the device: blocks never overlap, what is freed is used again, and it can be given back."""

from __future__ import annotations

import gc
import random
import threading

import torch
from torch.nn import functional as F

from tests.differential import data, flush
from torch_tinygrad.tiny import empty_cache, memory_allocated, memory_reserved

MIB = 1 << 20


def test_blocks_of_all_sizes_keep_their_values():
    chosen = random.Random(0)
    living: dict[int, tuple[torch.Tensor, int]] = {}
    for number in range(400):
        size = chosen.choice([1, 100, 4096, 70_000, 300_000, MIB, 3 * MIB]) + chosen.randrange(64)
        living[number] = torch.full((size,), number, dtype=torch.int32, device="tiny"), size
        if len(living) > 20:
            old, size = living.pop(chosen.choice(list(living)))
            del old
        if number % 25 == 0:
            flush()
        if number % 100 == 99:
            empty_cache()
    for number, (tensor, size) in living.items():
        assert torch.equal(tensor.cpu(), torch.full((size,), number, dtype=torch.int32))


def test_freed_memory_is_given_back():
    gc.collect()  # what earlier tests left, or it is freed in the middle of this one
    flush()
    empty_cache()
    before = memory_reserved()
    large, small = (torch.ones(n, device="tiny") for n in (16 * MIB, 1000))
    flush()
    assert memory_reserved() > before + 63 * MIB
    del large
    flush()
    empty_cache()
    assert memory_reserved() < before + 32 * MIB
    assert small.sum().item() == 1000


def test_freed_memory_serves_other_sizes():
    """A batch that grows from step to step: what earlier sizes had serves the new ones."""
    gc.collect()
    flush()
    empty_cache()
    before = memory_reserved()
    for n in range(1, 61):
        x = torch.ones(n, 64 * 1024, device="tiny")
        (x * 2).flip(0).sum(0)
        flush()
        del x
    assert memory_reserved() - before < 6 * 60 * 64 * 1024 * 4


def test_steps_of_aten_reuse_their_memory():
    x, weight = data(8, 32, 24, 24).to("tiny"), data(32, 32, 3, 3).to("tiny").requires_grad_()
    reserved = []
    for _ in range(12):
        F.conv2d(x, weight, padding=1).square().sum().backward()
        weight.grad = None
        flush()
        reserved.append(memory_reserved() - memory_allocated())
    assert len(set(reserved[4:])) == 1, reserved


def test_tensors_of_the_cpu_are_not_touched():
    """CPU tensors made and freed while the device computes, in this thread and in others, and results kept past it."""
    weight = data(32, 32, 3, 3)
    expected = F.conv2d(data(4, 32, 16, 16), weight, padding=1)
    stop, wrong = threading.Event(), []

    def allocate():
        while not stop.is_set():
            tensors = [torch.full((n,), float(n)) for n in (10, 10_000, MIB)]
            wrong.extend(t for t in tensors if t.sum().item() != t.numel() ** 2)

    threads = [threading.Thread(target=allocate) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        kept = []
        for _ in range(20):
            y = F.conv2d(data(4, 32, 16, 16).to("tiny"), weight.to("tiny"), padding=1)
            kept.append((y, y.cpu()))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not wrong
    for on_tiny, on_cpu in kept:
        torch.testing.assert_close(on_cpu, expected)
        torch.testing.assert_close(on_tiny.cpu(), expected)
