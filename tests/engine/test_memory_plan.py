"""Where temporaries lie: what lives at the same time never shares memory."""

import random

import pytest
import torch

from tests.differential import DEVICE, ON_TINY, data, flush
from torch_tinygrad.engine.memory import AFTER, BEFORE, Host, plan, shared_blocks


@pytest.mark.parametrize("seed", range(20))
def test_what_lives_at_the_same_time_does_not_overlap(seed):
    chance = random.Random(seed)
    spans = [(first := chance.randrange(30), first + chance.randrange(8), chance.randrange(1, 5000)) for _ in range(60)]
    hosts = [Host(BEFORE, 5, 3000), Host(20, AFTER, 4000)] * (seed % 2)
    places, total = plan(spans, hosts)
    blocks, sizes = shared_blocks(spans)
    for i, (first, last, nbytes) in enumerate(spans):
        host, offset = places[i]
        assert offset + nbytes <= (total if host is None else hosts[host].nbytes) and nbytes <= sizes[blocks[i]]
        assert host is None or last < hosts[host].first or first > hosts[host].last
        for j, (other_first, other_last, other_bytes) in enumerate(spans[:i]):
            if first <= other_last and other_first <= last:
                assert blocks[i] != blocks[j]
                other, start = places[j]
                assert host != other or offset >= start + other_bytes or start >= offset + nbytes
    assert not hosts or {host for host, _ in places} == {0, 1, None}


def test_blocks_are_taken_again():
    blocks, sizes = shared_blocks([(step, step + 1, 1000) for step in range(20)])
    assert len(sizes) == 2 and set(blocks) == {0, 1}


@pytest.mark.skipif(not ON_TINY, reason="about the device's memory")
@pytest.mark.parametrize("steps", [5, 6, 40])
def test_a_loop_of_whole_values_takes_as_many_of_them_as_eager(steps):
    n = 64

    def shortest_paths():
        w = data(n, n, device=DEVICE)
        for k in range(steps):
            w = torch.minimum(w, w[:, k : k + 1] + w[k : k + 1])
        flush()

    shortest_paths()
    torch.tiny.reset_peak_memory_stats()
    before = torch.tiny.memory_allocated()
    shortest_paths()
    assert torch.tiny.max_memory_allocated() - before <= 3 * 4 * n * n + 4096
