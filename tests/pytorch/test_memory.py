"""What `torch.tiny` and `torch.accelerator` tell of memory, its limit, pinned memory, and memory nothing filled."""

from __future__ import annotations

import gc

import pytest
import torch

from tests.differential import ON_TINY, both, flush
from torch_tinygrad import _C
from torch_tinygrad.choice import is_host

pytestmark = pytest.mark.skipif(not ON_TINY, reason="about the device alone")
host_only = pytest.mark.skipif(not is_host(), reason="of the host's memory")

MIB = 1 << 20


def test_statistics_follow_buffers():
    gc.collect()
    flush()
    torch.accelerator.reset_peak_memory_stats()
    before = torch.accelerator.memory_stats()
    x = torch.zeros(4 * MIB, dtype=torch.uint8, device="tiny") + 1
    flush()
    during = torch.accelerator.memory_stats()
    assert during["allocated_bytes.all.current"] - before["allocated_bytes.all.current"] == 4 * MIB
    assert during["allocated_bytes.large_pool.current"] - before["allocated_bytes.large_pool.current"] == 4 * MIB
    assert during["allocation.all.current"] - before["allocation.all.current"] == 1
    del x
    gc.collect()
    flush()
    after = torch.accelerator.memory_stats()
    assert after["allocated_bytes.all.current"] == before["allocated_bytes.all.current"]
    freed = after["allocated_bytes.all.freed"] - before["allocated_bytes.all.freed"]
    assert freed == after["allocated_bytes.all.allocated"] - before["allocated_bytes.all.allocated"] >= 4 * MIB
    assert torch.accelerator.max_memory_allocated() >= before["allocated_bytes.all.current"] + 4 * MIB
    torch.accelerator.reset_peak_memory_stats()
    torch.accelerator.reset_accumulated_memory_stats()
    assert torch.accelerator.max_memory_allocated() == torch.accelerator.memory_allocated()
    assert torch.accelerator.memory_stats()["allocated_bytes.all.freed"] == 0


def test_the_module_tells_the_same():
    held = torch.ones(MIB, device="tiny")
    flush()
    for name in ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"):
        assert getattr(torch.tiny, name)() == getattr(torch.accelerator, name)(0) >= held.nbytes
        assert getattr(torch.tiny, name)("tiny:0") == getattr(torch.tiny, name)(0)
    assert torch.tiny.memory_reserved() >= torch.tiny.memory_allocated()
    assert torch.tiny.memory_stats() == dict(torch.accelerator.memory_stats())
    assert (
        torch.tiny.memory_stats_as_nested_dict()["allocated_bytes"]["all"]["current"] == torch.tiny.memory_allocated()
    )
    assert "peak" in torch.tiny.memory_summary() and "MiB" in torch.tiny.memory_summary(abbreviated=True)
    torch.tiny.ipc_collect()
    with pytest.raises(ValueError, match="Expected a tiny device"):
        torch.tiny.memory_allocated("cpu")


def test_free_and_total_memory_are_the_systems():
    held = torch.ones(4, device="tiny") + 1
    flush()
    free, total = torch.tiny.mem_get_info()
    assert held.sum().item() == 8
    assert 0 < free <= total == torch.tiny.get_device_properties().total_memory
    assert torch.accelerator.get_memory_info(0)[1] == total


@host_only
def test_the_snapshot_shows_blocks_in_use():
    held = torch.ones(MIB, device="tiny")
    flush()
    segments = torch.tiny.memory_snapshot()
    address = _C.buffer_address(held)
    blocks = [block for segment in segments for block in segment["blocks"]]
    around = [block for block in blocks if block["address"] <= address < block["address"] + block["size"]]
    assert [block["state"] for block in around] == ["active_allocated"]
    assert sum(block["size"] for block in blocks) == torch.tiny.memory_reserved()


@host_only
def test_a_process_keeps_to_its_part():
    total = torch.tiny.mem_get_info()[1]
    gc.collect()
    torch.tiny.empty_cache()
    try:
        torch.tiny.set_per_process_memory_fraction((torch.tiny.memory_reserved() + 64 * MIB) / total)
        kept = torch.ones(MIB, device="tiny") * 2
        with pytest.raises(torch.OutOfMemoryError, match=r" out of memory\. .*set_per_process_memory_fraction"):
            torch.empty(64 * MIB, device="tiny").fill_(1).cpu()
        assert kept.sum().item() == 2 * MIB
        assert torch.accelerator.memory_stats()["num_ooms"] >= 1
    finally:
        torch.tiny.set_per_process_memory_fraction(1.0)
    assert torch.empty(64 * MIB, device="tiny").fill_(1)[-1].item() == 1
    with pytest.raises(ValueError, match="Allowed range"):
        torch.tiny.set_per_process_memory_fraction(1.5)


def test_pinned_memory_says_so():
    plain = torch.arange(6.0)
    pinned = plain.pin_memory()
    assert pinned.is_pinned() and pinned[2:].is_pinned() and not plain.is_pinned()
    assert torch.empty(3, pin_memory=True).is_pinned()
    assert pinned.pin_memory() is pinned
    assert torch.equal(pinned.to("tiny", non_blocking=True).cpu(), plain)
    loader = torch.utils.data.DataLoader(torch.arange(8.0), batch_size=4, pin_memory=True)
    assert [batch.is_pinned() for batch in loader] == [True, True]
    assert not torch.ones(3, device="tiny").is_pinned()
    torch.accelerator.empty_host_cache()
    assert torch.equal(pinned, plain)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32, torch.uint8, torch.bool, torch.complex64])
def test_memory_that_nothing_filled_is_filled_where_asked(dtype):
    def program(device):
        yield
        return torch.empty(4, 3, dtype=dtype, device=device), torch.empty_strided(
            (3, 2), (1, 3), dtype=dtype, device=device
        )

    torch.use_deterministic_algorithms(True)
    try:
        both(program)
    finally:
        torch.use_deterministic_algorithms(False)
