"""Where temporaries lie: what lives at the same time never shares memory."""

import random

import pytest

from torch_tinygrad.engine.memory import plan, shared_blocks


@pytest.mark.parametrize("seed", range(20))
def test_what_lives_at_the_same_time_does_not_overlap(seed):
    chance = random.Random(seed)
    spans = [(first := chance.randrange(30), first + chance.randrange(8), chance.randrange(1, 5000)) for _ in range(60)]
    offsets, total = plan(spans)
    blocks, sizes = shared_blocks(spans)
    for i, (first, last, nbytes) in enumerate(spans):
        assert offsets[i] + nbytes <= total and nbytes <= sizes[blocks[i]]
        for j, (other_first, other_last, other_bytes) in enumerate(spans[:i]):
            if first <= other_last and other_first <= last:
                assert blocks[i] != blocks[j]
                assert offsets[i] >= offsets[j] + other_bytes or offsets[j] >= offsets[i] + nbytes


def test_blocks_are_taken_again():
    blocks, sizes = shared_blocks([(step, step + 1, 1000) for step in range(20)])
    assert len(sizes) == 2 and set(blocks) == {0, 1}
