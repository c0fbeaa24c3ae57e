"""Where temporaries live: one arena a program, blocks reused as soon as their last reader has run."""

from __future__ import annotations

from torch_tinygrad.values.blocks import ALIGNMENT


def plan(lifetimes: list[tuple[int, int, int]]) -> tuple[list[int], int]:
    """Offsets for blocks given as (first step, last step, bytes), and the arena's size. First fit, larger blocks first
    among those that start together; blocks whose lifetimes meet never overlap."""
    offsets = [0] * len(lifetimes)
    placed: list[tuple[int, int, int, int]] = []  # first, last, offset, end
    order = sorted(range(len(lifetimes)), key=lambda i: (-lifetimes[i][2], lifetimes[i][0]))
    arena = 0
    for i in order:
        first, last, nbytes = lifetimes[i]
        size = (nbytes + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
        at = 0
        for _, _, begin, end in sorted((p for p in placed if p[0] <= last and first <= p[1]), key=lambda p: p[2]):
            if begin - at >= size:
                break
            at = max(at, end)
        offsets[i] = at
        placed.append((first, last, at, at + size))
        arena = max(arena, at + size)
    return offsets, arena


def shared_blocks(lifetimes: list[tuple[int, int, int]]) -> tuple[list[int], list[int]]:
    """Where no part of a buffer can be an operand: for each lifetime the number of a block of its own, and the blocks'
    sizes. A block is taken again when its last reader has run, by what fits it best and wastes at most half of it."""
    numbers = [0] * len(lifetimes)
    sizes: list[int] = []
    free_after: list[int] = []
    for i in sorted(range(len(lifetimes)), key=lambda i: (lifetimes[i][0], -lifetimes[i][2])):
        first, last, nbytes = lifetimes[i]
        fitting = (b for b, size in enumerate(sizes) if free_after[b] < first and nbytes <= size <= 2 * nbytes)
        block = min(fitting, key=sizes.__getitem__, default=len(sizes))
        if block == len(sizes):
            sizes.append(nbytes)
            free_after.append(last)
        numbers[i], free_after[block] = block, last
    return numbers, sizes
