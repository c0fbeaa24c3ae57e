"""What is written into a tensor of another type is computed in the operator's own type, and converted after that: a
byte divided in place by 300 is 0, and the sum of two bytes that goes into floats is one of bytes."""

import warnings

import pytest
import torch

from tests.differential import DEVICE

INTEGERS = {
    **{name: getattr(torch, name) for name in ("add", "sub", "mul", "maximum", "minimum", "gcd", "lcm", "fmod")},
    **{name: getattr(torch, name) for name in ("floor_divide", "remainder", "bitwise_and", "bitwise_xor", "gt")},
    **{name: getattr(torch, name) for name in ("bitwise_left_shift", "bitwise_right_shift", "clamp_min", "clamp_max")},
    "trunc": lambda a, b, out: torch.div(a, b, rounding_mode="trunc", out=out),
    "clamp": lambda a, b, out: torch.clamp(a, b, b + 9, out=out),
    "addcmul": lambda a, b, out: torch.addcmul(a, b, a, out=out),
    "square": lambda a, b, out: torch.pow(a, 2, out=out),
    "a power of two": lambda a, b, out: torch.pow(2, b, out=out),
    "neg": lambda a, b, out: torch.neg(a, out=out),
    "where": lambda a, b, out: torch.where(a > b, a, b, out=out),
    "cat": lambda a, b, out: torch.cat([a, b], out=out),
    "mean": lambda a, b, out: torch.sum(a * 1.0, 0, out=out),
}
FLOATS = {
    **{name: getattr(torch, name) for name in ("add", "sub", "mul", "div", "maximum", "remainder", "fmod", "pow")},
    **{name: getattr(torch, name) for name in ("floor_divide", "nextafter", "copysign", "lt")},
    "addcmul": lambda a, b, out: torch.addcmul(a, b, b, value=2, out=out),
    "addcdiv": lambda a, b, out: torch.addcdiv(a, b, b, value=2, out=out),
    "sqrt": lambda a, b, out: torch.sqrt(a, out=out),
}
# As methods, with the left operand as destination.
IN_PLACE = ("add_", "sub_", "mul_", "floor_divide_", "remainder_", "fmod_", "gcd_", "lcm_", "clamp_min_", "clamp_max_")
IN_PLACE_OF_FLOATS = ("add_", "sub_", "mul_", "div_", "floor_divide_", "remainder_", "fmod_", "pow_", "nextafter_")
WIDER = [
    *((torch.uint8, torch.int64), (torch.int8, torch.int32), (torch.int16, torch.int64), (torch.int32, torch.int64)),
    *((torch.float16, torch.float32), (torch.bfloat16, torch.float32), (torch.float32, torch.float64)),
]


@pytest.fixture(params=["never", "always"], autouse=True)
def mode(request):
    with torch.tiny.compile_mode(request.param), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # outputs are resized
        yield


def given(dtype: torch.dtype, other: torch.dtype, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    a, b = torch.tensor([100, 101, 7, 1, 90, 3, 127]), torch.tensor([1, 3, 2, 5, 300, 700, 1])
    if dtype.is_floating_point:
        a, b = a * 1.1, b * 1.001 + 1e-9
    return a.to(dtype).to(device), b.to(other).to(device)


def same(got: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(got.cpu(), expected, equal_nan=True)


@pytest.mark.parametrize("dtype, other", WIDER, ids=str)
def test_an_update_with_a_wider_type_is_computed_in_it(dtype, other):
    for name in IN_PLACE_OF_FLOATS if dtype.is_floating_point else IN_PLACE:
        (a, b), (expected, with_) = given(dtype, other, DEVICE), given(dtype, other, "cpu")
        same(getattr(a, name)(b), getattr(expected, name)(with_))
        view, row = torch.zeros(3, 7, dtype=dtype, device=DEVICE), torch.zeros(3, 7, dtype=dtype)
        view[1], row[1] = given(dtype, other, DEVICE)[0], given(dtype, other, "cpu")[0]
        getattr(view[1], name)(b)
        getattr(row[1], name)(with_)
        same(view, row)


@pytest.mark.parametrize("out", [torch.float32, torch.float64, torch.float16, torch.int64, torch.int16], ids=str)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64], ids=str)
def test_integers_are_computed_as_integers_wherever_they_go(dtype, out):
    for name, compute in INTEGERS.items():
        results = []
        for device in ("cpu", DEVICE):
            a, b = given(dtype, dtype, device)
            if name != "mean":
                a = a - 1 if name == "bitwise_left_shift" else a * 2
            result = torch.empty(0, dtype=out, device=device)
            try:
                compute(a, b, out=result)
            except RuntimeError as error:
                result = str(error).replace(DEVICE, "cpu")
            results.append(result)
        if isinstance(results[0], str):
            assert results[1] == results[0], name
        else:
            same(results[1], results[0])


@pytest.mark.parametrize("out", [torch.float64, torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_floats_are_rounded_to_their_own_type_first(dtype, out):
    for compute in FLOATS.values():
        results = []
        for device in ("cpu", DEVICE):
            a, b = given(dtype, dtype, device)
            results.append(torch.empty(0, dtype=out, device=device))
            compute(a, b, out=results[-1])
        same(results[1], results[0])


@pytest.mark.parametrize("name", ["sum", "mean", "prod", "cumsum", "var", "std"])
def test_reductions_are_computed_in_the_type_of_their_destination(name):
    values = torch.linspace(0.1, 3, 60, dtype=torch.float32).reshape(20, 3)
    results = [torch.empty(0, dtype=torch.float64, device=device) for device in ("cpu", DEVICE)]
    for result in results:
        getattr(torch, name)(values.to(result.device), 0, out=result)
    torch.testing.assert_close(results[1].cpu(), results[0], rtol=1e-12, atol=0)


def test_lists_of_tensors_too():
    lists = []
    for device in ("cpu", DEVICE):
        a, b = given(torch.float16, torch.float32, device)
        c, d = given(torch.float32, torch.float32, device)
        lists.append([a, c])
        torch._foreach_mul_(lists[-1], [b, d])
        torch._foreach_add_(lists[-1], [b, d], alpha=3)
    for got, expected in zip(*reversed(lists), strict=True):
        same(got, expected)
