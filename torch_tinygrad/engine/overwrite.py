"""Results that may lie where the values they replace lay: nobody reads those any more.

A storage whose new value was stored for others to read would otherwise get a new buffer: memory that the processor
fetches only to overwrite it.
"""

from __future__ import annotations

from tinygrad.engine.realize import get_call_arg_uops
from tinygrad.uop.ops import Ops, UOp

from .elements import body_of
from .order import Call, kernel_call, renumbered


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
    """Whether the kernel has read all that it needs of the storage when it stores the output over it."""
    arguments = get_call_arg_uops(call.uop)
    body = body_of(call.uop.src[0])
    if body is None or any(a.op is not Ops.BUFFER for a in arguments):
        return False

    def memory(element: UOp) -> UOp | int:
        buffer = arguments[element.src[0].arg.slot]
        return number if buffer is output else inputs.get(buffer, buffer)

    return body.overwrites_in_turn(memory)


def with_one_name(call: Call, inputs: dict[UOp, int]) -> Call:
    """The call with a buffer that has several names under one: to compilers, two parameters are two places, and what is
    loaded from one may be loaded again after it was overwritten through the other."""
    sink, arguments = call.uop.src[0], get_call_arg_uops(call.uop)
    if sink.op is not Ops.SINK:
        return call
    first: dict[UOp | int, int] = {}
    numbers = [first.setdefault(inputs.get(buffer, buffer), slot) for slot, buffer in enumerate(arguments)]
    if len(first) == len(arguments):
        return call
    return kernel_call(sink.substitute(renumbered(sink, numbers), walk=True), arguments)
