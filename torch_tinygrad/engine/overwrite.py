"""Results that may lie where the values they replace lay: nobody reads those any more.

A storage whose new value was stored for others to read would otherwise get a new buffer: memory that the processor
fetches only to overwrite it.
"""

from __future__ import annotations

from tinygrad.engine.realize import get_call_arg_uops
from tinygrad.uop.ops import Ops, UOp

from .merge import may_load_twice
from .order import Call


def replaceable(calls: list[Call], outputs: dict[UOp, int], inputs: dict[UOp, int]) -> set[UOp]:
    """The outputs that their only writer, a kernel, may store over the buffer that their storage had. `outputs` has the
    storage of each new buffer of that buffer's size, `inputs` that of each version of a buffer; calls run in this
    order."""
    storages = set(outputs.values())
    last_use: dict[int, int] = {}
    writers: dict[UOp, list[int]] = {}
    for i, call in enumerate(calls):
        for buffer in call.reads | call.writes:
            if (number := inputs.get(buffer)) in storages:
                last_use[number] = i
        for buffer in call.writes & outputs.keys():
            writers.setdefault(buffer, []).append(i)
    found = set()
    for buffer, number in outputs.items():
        match writers.get(buffer, []):
            case [writer] if calls[writer].uop.src[0].op is not Ops.SINK:
                continue  # what ATen computes may lie where ATen allocates it
            case [writer] if last_use.get(number, -1) < writer:
                found.add(buffer)
            case [writer] if last_use[number] == writer and _overwrites_in_turn(calls[writer], buffer, number, inputs):
                found.add(buffer)
    return found


def _overwrites_in_turn(call: Call, output: UOp, number: int, inputs: dict[UOp, int]) -> bool:
    """Whether a kernel reads of the storage only the element that it is about to store."""
    sink, arguments = call.uop.src[0], get_call_arg_uops(call.uop)
    if any(inputs.get(b) == number for b in call.writes):
        return False
    parts = sink.toposort()
    stores = [u for u in parts if u.op is Ops.STORE and _buffer(u.src[0], arguments) is output]
    loads = [u for u in parts if u.op is Ops.INDEX and inputs.get(_buffer(u, arguments)) == number]
    if len(stores) != 1 or len(stores[0].src) != 2 or any(u.op is Ops.REDUCE for u in parts):
        return False
    element, value = stores[0].src
    indirect = any(u.op is Ops.INDEX and u.src[0].op is not Ops.PARAM for u in parts)
    if not loads or indirect or any(u.op is Ops.RANGE and u not in element.ranges for u in parts):
        return False  # a kernel of our own, which may come by an element more than once
    needed = value.backward_slice_with_self
    if any(load.src[1:] != element.src[1:] or load not in needed for load in loads):
        return False
    # To a C compiler the two names are two places: it may load for another store what is overwritten by then.
    others = [u for u in parts if u.op is Ops.STORE and u is not stores[0]]
    if any(load in other.backward_slice for other in others for load in loads):
        return False
    return not may_load_twice([value], loads)


def _buffer(element: UOp, arguments: list[UOp]) -> UOp | None:
    parameter = element.src[0] if element.op is Ops.INDEX else element
    return arguments[parameter.arg.slot] if parameter.op is Ops.PARAM else None
