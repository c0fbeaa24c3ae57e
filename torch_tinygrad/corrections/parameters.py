"""Arguments of kernels: how they are numbered."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import tinygrad.codegen as codegen
from tinygrad.device import TinyELF
from tinygrad.runtime.ops_cpu import CPUProgram
from tinygrad.uop.ops import Ops, PatternMatcher, UOp, UPat

from . import rules
from .registry import correction, wrap


@correction("0.14.0", "engine/test_corrections.py::test_a_threads_number_is_never_taken_for_a_buffer")
def threads_are_numbered_after_all_buffers() -> None:
    """tinygrad numbers a thread by how many buffers there are, and takes it for the last one where one before that was
    not needed in the end. So it does where it runs a kernel itself, in its search."""
    if len(codegen.pm_number_params.patterns) != 1:
        raise rules.RuleNotFound("that which numbers parameters", len(codegen.pm_number_params.patterns))
    codegen.pm_number_params = PatternMatcher([(UPat(Ops.SINK, name="sink"), _numbered)])
    wrap(CPUProgram, "__init__", _init_program)


def _numbered(sink: UOp) -> UOp | None:
    params = [u for u in sink.toposort() if u.op is Ops.PARAM]
    unnumbered = [u for u in params if u.arg.slot == -1]
    after = itertools.count(1 + max((u.arg.slot for u in params), default=-1))
    numbers = {u: u.replace(arg=replace(u.arg, slot=next(after))) for u in unnumbered}
    return sink.substitute(numbers, walk=True) if numbers else None


def _init_program(plain: Callable) -> Callable:
    def init(self: CPUProgram, device, code) -> None:
        plain(self, device, code)
        self.runtimevars = {name: i for i, (name, *_) in enumerate(code.signature) if name == "core_id"}

    return init


@correction("0.14.0", "engine/test_corrections.py::test_arguments_are_numbered_as_they_are_passed")
def arguments_are_numbered_as_they_are_passed() -> None:
    """Arguments that a kernel's code does not use are counted, and OpenCL's runtime looks for one at its number among
    those that are passed."""
    wrap(UOp, "to_elf", _to_elf)


def _to_elf(plain: Callable) -> Callable:
    def to_elf(self: UOp) -> TinyELF:
        made = plain(self)
        return replace(made, signature=tuple((name, i, *rest) for i, (name, _, *rest) in enumerate(made.signature)))

    return to_elf
