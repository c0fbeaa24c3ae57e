"""Connectionist temporal classification: the probability of all alignments of labels with a sequence, step by step."""

from __future__ import annotations

import math

import torch
from tinygrad import Tensor, dtypes

from torch_tinygrad.kernels.arrays import positions

from ..kernels.loops import Loops, Value, as_index, run
from .gather import gather
from .registry import Meta, lowers

aten = torch.ops.aten
INF = math.inf
LOG2_E = 1 / math.log(2)


def numbers(values: list[int]) -> Tensor:
    """A column of constants."""
    at = positions(len(values), 0, 2)
    return sum((at.eq(i).where(v, 0) for i, v in enumerate(values)), at * 0).contiguous()


def labels_between_blanks(targets: Tensor, lengths: list[int], blank: int, states: int) -> Tensor:
    """Every second state is a label, the others are blanks: (batch, states). Targets are rows, or one after another."""
    batch, longest = len(lengths), states // 2
    place = positions(states, 1, 2)
    if not longest or not targets.numel():
        return Tensor.full((batch, states), blank, dtype=dtypes.int32, buffer=False)
    if targets.ndim == 1:
        first = numbers([sum(lengths[:i]) for i in range(batch)])
        source, index = targets.reshape(1, targets.numel()).expand(batch, targets.numel()), first + place // 2
    else:
        source, index = targets, (place // 2).expand(batch, states)
    index = index.minimum(source.shape[1] - 1).contiguous()
    found = gather(source.contiguous(), 1, index, meta=(Meta((batch, states), torch.int64),)).cast(dtypes.int32)
    return (place % 2).eq(1).where(found, blank)


@lowers(aten._ctc_loss.default)
def ctc_loss(log_probs, targets, input_lengths, target_lengths, blank=0, zero_infinity=False, *, meta):
    (_, length, states), dtype = meta[1].shape, log_probs.dtype
    _, batch, classes = log_probs.shape
    labels = labels_between_blanks(targets, list(target_lengths), blank, states).contiguous()
    place = positions(states, 1, 2)
    before = labels.pad((None, (2, 0)), value=blank).shrink((None, (0, states)))
    # A label may follow another directly, without a blank in between, unless they are the same.
    may_skip = (place % 2).eq(1) & (place > 1) & labels.ne(before)
    skip = may_skip.where(0.0, -INF).cast(dtype).contiguous()
    used = (place <= numbers([2 * t for t in target_lengths])).where(0.0, -INF).cast(dtype).contiguous()
    start = (used.eq(0) & (place < 2)).where(0.0, -INF).cast(dtype)

    def body(k: Loops, alpha: Value, log_probs: Value, labels: Value, skip: Value, used: Value, start: Value) -> None:
        rows = k.problem * (length * states)

        def emitted(time, state) -> Value:
            label = as_index(k.load(labels, k.problem * states + state), classes)
            return k.load(log_probs, (time * batch + k.problem) * classes + label)

        with k.share(states) as state:
            first = k.load(start, k.problem * states + state) + emitted(0, state)
            k.store((alpha, rows + state, first))
        k.sync()
        with k.loop(length - 1) as step:
            with k.share(states) as state:
                at, row = k.problem * states + state, rows + step * states
                from_here = k.load(alpha, row + state)
                with k.when(state > 0):
                    from_one = k.load(alpha, row + state - 1)
                with k.when(state > 1):
                    from_two = k.load(alpha, row + state - 2) + k.load(skip, at)
                from_one = (state > 0).where(from_one, -INF)
                from_two = (state > 1).where(from_two, -INF)
                top = from_here.maximum(from_one).maximum(from_two)
                shift = top.eq(-INF).where(0.0, top)
                parts = [((p - shift) * LOG2_E).exp2() for p in (from_here, from_one, from_two)]
                total = (parts[0] + parts[1] + parts[2]).log2() * math.log(2) + shift
                k.store((alpha, row + states + state, total + k.load(used, at) + emitted(step + 1, state)))
            k.sync()

    nothing = Tensor.full((batch, length, states), -INF, dtype=dtype, buffer=False)
    (alpha,) = run("ctc", body, batch, states, [nothing], log_probs, labels, skip, used, start)
    last_row = positions(length, 1, 3).eq(numbers([t - 1 for t in input_lengths]).reshape(batch, 1, 1))
    ends = last_row.where(alpha, -INF).max(1)
    final = place.eq(numbers([2 * t for t in target_lengths])) | place.eq(numbers([2 * t - 1 for t in target_lengths]))
    ends = final.where(ends, -INF)
    top = ends.max(1)
    shift = top.eq(-INF).where(0.0, top)
    loss = -((ends - shift.unsqueeze(1)).exp().sum(1).log() + shift)
    empty = numbers([int(t == 0) for t in input_lengths]).reshape(batch).eq(1)
    aligned = numbers([int(t == 0) for t in target_lengths]).reshape(batch).eq(1)
    return empty.where(aligned.where(0.0, INF), loss), alpha
