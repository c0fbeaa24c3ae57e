"""What tinygrad writes for LLVM, on the CPU and on AMD: arithmetic as it is written, as in C (`arithmetic.py`,
`rendering.py`)."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable

from tinygrad.dtype import DType, dtypes
from tinygrad.renderer import llvmir
from tinygrad.renderer.llvmir import AMDLLVMRenderer, CPULLVMRenderer, LLVMRenderer
from tinygrad.uop.ops import Ops, PatternMatcher, UOp, UPat

from .registry import correction, wrap

SUFFIX = {dtypes.float32: "f32", dtypes.float64: "f64"}


@correction("0.14.0", "operators/test_numbers_exact.py::test_rounds_where_the_cpu_rounds")
def floats_have_signs_and_roundings() -> None:
    """Zeros have no sign, quotients become products with an inverse, and products and sums are rounded once."""
    for op, written in llvmir.float_lop.items():
        llvmir.float_lop[op] = written.replace(llvmir.flags, "")


@correction("0.14.0", "aliasing/test_findings.py::test_sums_and_products_of_integers_wrap_inside_a_kernel")
def integers_wrap() -> None:
    """Sums of signed integers are said not to overflow."""
    llvmir.signed_lop[Ops.ADD] = "add"


@correction("0.14.0", "engine/test_corrections.py::test_what_a_lowering_rounds_once_is_rounded_once")
def fused_products_are_calls() -> None:
    """tinygrad has none."""
    first = PatternMatcher([(UPat(Ops.MULACC, tuple(SUFFIX), name="x"), _fma)])
    for renderer in (CPULLVMRenderer, AMDLLVMRenderer):
        renderer.string_rewrite = first + renderer.string_rewrite
        renderer.code_for_op = {**renderer.code_for_op, Ops.MULACC: lambda: None}


@correction("0.14.0", "operators/test_numbers_exact.py::test_functions_of_a_number_that_is_nan")
def floats_are_written_as_their_bits() -> None:
    """Some of Python's numbers are none of LLVM's: 1e+17. An integer of nan may be anything where the number is known:
    `nan_is_a_number_that_the_compiler_does_not_know` of `rendering.py`."""
    wrap(llvmir, "lconst", _constant)
    wrap(LLVMRenderer, "_render_fn", _with_nan)


def _constant(plain: Callable) -> Callable:
    def lconst(x: float, dtype: DType) -> str:
        if dtype in SUFFIX and math.isnan(x):
            return f"%nan_{SUFFIX[dtype]}"
        written = plain(x, dtype)
        return f"0x{struct.pack('>d', written).hex()}" if isinstance(written, float) else written

    return lconst


# What comes out of an empty piece of assembly is not known.
NAN = """  %nan_bits = call i32 asm "", "={register},0"(i32 2143289344)
  %nan_f32 = bitcast i32 %nan_bits to float
  %nan_f64 = fpext float %nan_f32 to double"""


def _with_nan(plain: Callable) -> Callable:
    def render_function(self: LLVMRenderer, name: str, args: list, kernel: list[str], *options) -> str:
        if any("%nan_" in line for line in kernel):
            kernel = [NAN.format(register="v" if isinstance(self, AMDLLVMRenderer) else "r"), *kernel]
        return plain(self, name, args, kernel, *options)

    return render_function


def _fma(ctx: dict[UOp, str], x: UOp) -> str:
    of = llvmir.ldt(x.dtype)
    operands = ", ".join(f"{of} {ctx[v]}" for v in x.src)
    return f"  {ctx[x]} = call {of} @llvm.fma.{SUFFIX[x.dtype]}({operands})"
