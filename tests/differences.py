"""Writes docs/differences.md: every place where the device and the CPU are known to differ, and why.

What was decided stands in a table here; where the CPU is wrong, beside the tests that found it; what fails comes from
the committed coverage. `python -m tests.differences` writes the page, and a test holds it against this."""

from __future__ import annotations

import json
import re
from pathlib import Path

from .bad_calls import CRASHES
from .empties import UNSTEADY, WRONG_ON_CPU

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "differences.md"

# (what, the CPU, tiny, why)
DECIDED = (
    (
        "the lowest integer divided by -1, rounded towards zero",
        "ends the process",
        "that integer, as every other division gives",
        "a processor traps on it",
    ),
    (
        "`binary_cross_entropy` of what is not in [0, 1]",
        "raises at the call",
        "raises at the call if the values are there, else at the flush that computes them",
        "reading them would cut training steps in two",
    ),
    (
        "random numbers",
        "a Mersenne twister",
        "counters: the same seed gives other numbers, the same on every device of tinygrad",
        "a stream that any number of threads can take parts of",
    ),
    (
        "sums, products and functions of floats",
        "in one order, some functions beyond 2 ulp",
        "in another order, functions within 2 ulp, with what `tests/exact_functions.py` excepts; "
        "what is compiled rounds other than what runs directly",
        "fused kernels; `use_deterministic_algorithms` keeps to one way",
    ),
    (
        "`index_add` of matrices with `alpha`",
        "product and sum are rounded once",
        "each is rounded (1 ulp)",
        "the CPU's vector kernel contracts them, its scalar one does not",
    ),
    (
        "gradients of `embedding` in half types, and with `scale_grad_by_freq`",
        "rounded at every addition",
        "added up in single precision, rounded once",
        "nearer to the truth",
    ),
    (
        "half precision in fused kernels",
        "every operation is rounded",
        "the same, except inside one operator of several steps",
        "operators compute in single precision",
    ),
    (
        "`SGD(fused=True)` in half types",
        "a step changes no whole vector of a parameter (torch 2.13)",
        "the step as it is defined, once compiled",
        "PyTorch's vectorised loop does not store it; directly it is that loop",
    ),
    (
        "which of equal elements `sort`, `argsort`, `topk`, `kthvalue` and `mode` name",
        "whichever its partition leaves there, from 17 elements on in every type",
        "compiled, the first (`mode`: the last); directly the CPU's",
        "PyTorch promises an order with `stable=True` alone, and there it is the same",
    ),
    (
        "the sign of a zero from `maximum`, `minimum`, `fmax` and `fmin` of 0.0 and -0.0",
        "the second's within a vector, the first's after the last whole one",
        "compiled, the first's; directly the CPU's",
        "PyTorch promises none",
    ),
    (
        "operators in place on memory that overlaps itself (`as_strided`)",
        "elements that lie twice may be computed twice",
        "compiled, each is computed once from what was there; directly as on the CPU",
        "PyTorch's pages call it undefined; what `expand` makes is refused",
    ),
    (
        "nan in products that `alpha=0` takes away (`baddbmm`; half types)",
        "by size and type: BLAS does not look at them, loops of PyTorch's own do",
        "not looked at, except in half types",
        "PyTorch's pages say it of `beta` alone",
    ),
    (
        "half types in operators of several steps (`addbmm`, transposed convolutions, `grid_sample`, norms)",
        "rounded in between, in the order of its loops",
        "compiled, computed in single precision and rounded once",
        "nearer to the truth; `trace/` takes apart what PyTorch takes apart",
    ),
    (
        "mean and deviation of a batch in bfloat16, rounded before they are used",
        "of sums in one order",
        "of sums in another: where the last bit of one differs, so does a whole channel's",
        "PyTorch rounds them to the type of the parameters",
    ),
    (
        "functions of complex numbers with an infinite part or nan",
        "what C says of each",
        "nan in other places, infinities without their exact angle",
        "each function is its formula; finite numbers are the same",
    ),
    ("quantized tensors", "there", "the CPU's own kernels, counted in `stats()['fallbacks']`", "no lowering"),
    (
        "sparse layouts, `svd`, `eigh`, `eig`, `lstsq`, `ldl`",
        "there",
        "the CPU's own kernels, counted in `stats()['fallbacks']`",
        "signs and phases are LAPACK's choice",
    ),
    (
        "a tensor that was never written",
        "what its memory held",
        "the same, from a memory of its own",
        "its values are fixed when they are first looked at",
    ),
)

# Of calls that are no error.
CPU_IS_WRONG = {
    "mm(x, x, out=x)": "writes what it has yet to read, as `addmm`, `bmm`, `baddbmm` and their in-place forms do",
    "cat([x[:, 2:], x[:, :2]], 1, out=x)": "the same",
    "gelu(x, out=y)": "takes `out=` for dense, as `avg_pool3d` and `narrow_copy` do: values lie elsewhere",
    "matrix_exp": "is nan in half types",
    "histc": "counts in half types, where each thread's count ends at 2048 and 256",
    "fmod": "is nan where the quotient overflows, as `remainder` is",
    "ldexp": "is nan in half types where the power of two overflows, of zeros too",
    "special.gammaincc": "loses a share of the result where the first argument is below 1e-16",
    "native_group_norm": "of equal elements is off by 3e-5 of their size: it multiplies, then subtracts the mean",
    "native_group_norm(x, weight)": "takes weight and bias for dense, and reads beyond them where they are not",
    "median": "along an expanded dimension sorts its memory in place, where elements of all rows lie",
    "i0": "is nan at infinity",
    "erf": "is zero in half types of small numbers, and `sigmoid` of -89 in bfloat16",
    "logit": "loses digits near 1/2, where it is zero",
    "sinc": "is not zero at whole numbers, and nan where the angle overflows",
    "polygamma": "has five digits left of -7 in single precision",
    "special.airy_ai": "has seven digits left of -2",
    "special.scaled_modified_bessel_k1": "is nan at subnormal numbers, where its relatives are infinite",
    "bessel_j0": "has seven digits where waves begin, at 5, as its relatives do, and loses digits near its zeros",
}

# Samples that fail: which (operators, dtypes, failures) a reason of the tables above is for. An exception is never what
# rounding explains.
HALVES, VALUES, ANY = "float16|bfloat16", "AssertionError: (Tensor-likes|Scalars) are not .*", ".*"
WHY = (
    ("sort|argsort|topk|kthvalue|mode|msort", ANY, VALUES, "which of equal elements"),
    ("matrix_exp", HALVES, VALUES, "the CPU is wrong"),
    # psi'(-7.950586795806885) is 412.744223 by mpmath and here, 412.752594 on the CPU.
    (r"(special\.)?polygamma.*", "float32", VALUES, "the CPU is wrong"),
    (r"_batch_norm_with_update|nn\.functional\.instance_norm", HALVES, VALUES, "sums in another order"),
    (ANY, HALVES, VALUES, "rounded once"),
)


def why(operator: str, dtype: str, failures: list[str]) -> str:
    """Which of the reasons above samples fail for."""
    for names, dtypes, kind, reason in WHY:
        told = [" ".join(failure.partition(": ")[2].split()) for failure in failures]  # without the sample's number
        if re.fullmatch(names, operator) and re.fullmatch(dtypes, dtype) and all(re.fullmatch(kind, t) for t in told):
            return reason
    return "not known"


def row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def failing() -> list[str]:
    operators = json.loads((ROOT / "docs" / "coverage.json").read_text())["operators"]
    rows = []
    for name, dtypes in sorted(operators.items()):
        for dtype, aspects in dtypes.items():
            for aspect, outcome in aspects.items():
                if isinstance(outcome, dict) and outcome.get("failures"):
                    first = " ".join(outcome["failures"][0].split())[:160]
                    of = outcome["passed"] + outcome["failed"]
                    reason = why(name, dtype, outcome["failures"])
                    rows.append(row(name, dtype, aspect, f"{outcome['failed']} of {of}", reason, first))
    return rows


def page() -> str:
    lines = [
        "# Where `tiny` and the CPU differ",
        "",
        "Generated by `python -m tests.differences`; do not edit.",
        "",
        "## By decision",
        "",
        row("what", "the CPU", "tiny", "why"),
        row(*["---"] * 4),
        *(row(*cells) for cells in DECIDED),
        "",
        "## Where the CPU is wrong",
        "",
        row("operator", "what the CPU does"),
        row("---", "---"),
        *(row(f"`{name}`", what) for name, what in CPU_IS_WRONG.items()),
        *(row(f"`{name}` of empty tensors", what) for name, what in WRONG_ON_CPU.items()),
        *(row(f"`{name}` of empty tensors", what) for name, (what, _) in UNSTEADY.items()),
        *(row(f"`{name}`", what) for name, what in CRASHES.items()),
        "",
        "## Samples of PyTorch's operator database that fail",
        "",
        "As of the last `make conformance ARGS=--report`.",
        "",
        row("operator", "dtype", "aspect", "samples", "why", "the first failure"),
        row(*["---"] * 6),
        *failing(),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
