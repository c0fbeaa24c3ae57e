"""Which aten operators each step of a program carries out, for `TORCH_TINY_DEBUG=2`, `torch.profiler` and
`torch.tiny.explain`.

Every buffer that the graph names is traced back to the operators whose results it takes to compute it from other such
buffers. A buffer that tinygrad put in between belongs to whatever is computed from it.
"""

from __future__ import annotations

from tinygrad.renderer import Estimates
from tinygrad.uop.ops import Ops, UOp

from torch_tinygrad.values.graph import Graph
from torch_tinygrad.values.steps import AtenStep

from .flops import flops_of
from .schedule import Schedule


def operators(schedule: Schedule) -> list[str]:
    """For each call of the schedule, its operators, in the order in which the trace has them."""
    order = {name: i for i, name in enumerate(dict.fromkeys(schedule.graph.origins.values()))}
    named = _operators_of_buffers(schedule.stores, schedule.graph)
    later: dict[UOp, dict[str, None]] = {}
    lines = []
    for call in reversed(schedule.calls):
        names = {name: None for b in call.writes for name in named.get(b, ())}
        part = "part of " if not names and any(b in later for b in call.writes) else ""
        names = names or {name: None for b in call.writes for name in later.get(b, ())}
        for buffer in call.reads - named.keys():
            later.setdefault(buffer, {}).update(names)
        lines.append(part + ", ".join(sorted(names, key=order.__getitem__)))
    return lines[::-1]


def kernel_line(name: str, estimate: Estimates, operators: str) -> str:
    return f"kernel {name}, {int(estimate.mem)} bytes, {int(estimate.ops)} flops: {operators}"


def library_line(step: AtenStep, moved: int) -> str:
    return f"aten {step.op}, {moved} bytes, {flops_of(step)} flops"


def _operators_of_buffers(stores: list[UOp], graph: Graph) -> dict[UOp, dict[str, None]]:
    """For each buffer that something is stored to, the operators between it and the buffers it is computed from."""
    found: dict[UOp, dict[str, None]] = {}
    for after in UOp.sink(*stores).toposort():
        if after.op is not Ops.AFTER:
            continue
        names = found.setdefault(after.buf_uop, {})
        for made in after.src[1:]:
            inside = made.toposort(lambda u, after=after: u.op is not Ops.AFTER or u is after, enter_calls=False)
            names.update(dict.fromkeys(graph.origins[u] for u in inside if u in graph.origins))
        if after in graph.origins:
            names[graph.origins[after]] = None
    return found
