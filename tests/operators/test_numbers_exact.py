"""Float arithmetic is what is written: no rounding is moved or dropped, and the same trace on the same values gives the
same bits, whether its numbers are constants of the program or its inputs."""

from __future__ import annotations

import pytest
import torch

from tests.differential import DEVICE, both

INFINITY = float("inf")
VALUES = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    3.0,
    1e-10,
    -1e-10,
    1e-45,
    1e8,
    1e30,
    -3e38,
    INFINITY,
    -INFINITY,
    float("nan"),
    0.1,
    7.3,
]

PROGRAMS = {
    "a sum taken back": lambda x: (x + 1e8) - 1e8,
    "a product taken back": lambda x: (x * 1e30) * 1e-30,
    "a quotient by itself": lambda x: x / x,
    "a product divided again": lambda x: (x * 3.0) / 3.0,
    "two quotients": lambda x: x / 3.0 / 7.0,
    "a third": lambda x: x / 3.0,
    "a tenth of a sum": lambda x: (x + 0.1) / 10.0,
    "products of one number": lambda x: x * 0.1 + x * 0.2,
    "a number and its product": lambda x: x + x * 0.1,
    "twice added": lambda x: (x * 0.3 + x) + x,
    "a fraction of itself": lambda x: x / (1.0 + x),
    "an inverse square": lambda x: 1.0 / (x * x),
    "an inverse product": lambda x: 1.0 / (x * 3.0),
    "nothing times": lambda x: x * 0.0,
    "nothing added": lambda x: x + 0.0,
    "nothing taken": lambda x: x - 0.0,
    "a sum negated": lambda x: -(x + 1.0),
    "a product and a sum": lambda x: x * 1.1 + x * x,
    "a scaled sum": lambda x: (x[:2].expand(3, 2) * 0.1).sum(0),
    "a sum of large products": lambda x: (x[10:11].expand(4) * 0.1).sum(0, keepdim=True),
}


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    a, b = (t.nan_to_num(nan=12345.0, posinf=INFINITY, neginf=-INFINITY) for t in (a, b))
    return torch.equal(a.view(integer), b.view(integer))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_rounds_where_the_cpu_rounds(dtype: torch.dtype) -> None:
    x = torch.tensor(VALUES, dtype=torch.float64).to(dtype)
    on_device = {name: program(x.to(DEVICE)) for name, program in PROGRAMS.items()}
    wrong = [name for name, program in PROGRAMS.items() if not same_bits(on_device[name].cpu(), program(x))]
    assert not wrong


def test_a_complex_number_times_its_conjugate_is_real() -> None:
    z = torch.randn(64, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))
    assert (z.to(DEVICE) * z.to(DEVICE).conj()).cpu().imag.eq(0).all()


def test_numbers_may_be_constants_or_inputs() -> None:
    """The first time numbers are constants; those that differ the second time are inputs from then on."""
    generator = torch.Generator().manual_seed(0)
    start, rate = torch.randn(1000, generator=generator), torch.randn(1000, generator=generator)

    def step(numbers: list[float]) -> torch.Tensor:
        x, y = start.to(DEVICE), rate.to(DEVICE)
        for number in numbers:
            x = (x * number + y) / 3.0 + y * number
            y = (y - number) * 0.7 + x / (1.0 + number)
        return torch.stack([x, y]).cpu()

    first = step([0.3, 0.9, 1.7])
    step([0.4, 0.8, 1.3])
    step([0.5, 0.7, 1.1])
    assert torch.equal(step([0.3, 0.9, 1.7]), first)


@pytest.mark.parametrize(
    "optimizer", [torch.optim.AdamW, torch.optim.SGD, torch.optim.RMSprop], ids=lambda o: o.__name__
)
def test_training_again_gives_the_same_bits(optimizer) -> None:
    """Ten steps, repeated in one process: the second time every number that changes is an input."""

    def train() -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(20, 33), torch.nn.Tanh(), torch.nn.LayerNorm(33), torch.nn.Linear(33, 5)
        )
        model = model.to(DEVICE)
        update = optimizer(model.parameters(), lr=0.01)
        x = torch.randn(16, 20, generator=torch.Generator().manual_seed(1)).to(DEVICE)
        losses = []
        for _ in range(10):
            update.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            update.step()
            losses.append(loss.detach().cpu())
        return [*losses, *(p.detach().cpu() for p in model.parameters())]

    first = train()
    for _ in range(2):
        assert all(torch.equal(a, b) for a, b in zip(train(), first, strict=True))


FUNCTIONS = (
    *(torch.exp, torch.expm1, torch.exp2, torch.log, torch.log1p, torch.log2, torch.sin, torch.cos, torch.tan),
    *(torch.atan, torch.asin, torch.sinh, torch.cosh, torch.tanh, torch.sigmoid, torch.sqrt, torch.rsqrt, torch.erf),
    *(torch.erfc, torch.lgamma, torch.digamma, torch.round, torch.floor, torch.nn.functional.gelu),
)


VALUES_OF_CONSTANTS = [1.0, -1.0, 0.7]


@pytest.mark.parametrize("number", VALUES_OF_CONSTANTS)
def test_functions_of_constants_are_those_of_inputs(number):
    length = VALUES_OF_CONSTANTS.index(number) + 3  # another trace for each: later ones have the number as an input
    made, given = torch.full((length,), number, device=DEVICE), torch.full((length,), number).to(DEVICE)
    found, wanted = [f(made) for f in FUNCTIONS], [f(given) for f in FUNCTIONS]
    for function, f, w in zip(FUNCTIONS, found, wanted, strict=True):
        assert same_bits(f.cpu(), w.cpu()), function.__name__
        torch.testing.assert_close(w.cpu(), function(given.cpu()), equal_nan=True)


NAN = float("nan")
OF_NAN = (
    "exp",
    "exp2",
    "expm1",
    "log",
    "sin",
    "cos",
    "sinh",
    "tanh",
    "sigmoid",
    "erf",
    "lgamma",
    "round",
    "int",
    "long",
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_functions_of_a_number_that_is_nan(dtype):
    """Integers of nan are undefined in C: a compiler that knows the number makes anything of what depends on one."""

    def run(device: str) -> list[torch.Tensor]:
        x = torch.tensor([1.0, -1.0, 0.0, 2.0, -INFINITY], dtype=dtype).to(device)
        return [x**NAN, NAN**x, x ** (x * NAN), *(getattr(x * NAN, name)() for name in OF_NAN)]

    with torch.tiny.compile_mode("always"):
        for name, got, want in zip(("pow", "rpow", "pow", *OF_NAN), run(DEVICE), run("cpu"), strict=True):
            torch.testing.assert_close(got.cpu(), want, equal_nan=True, msg=lambda text, name=name: f"{name}: {text}")


BRACKETS = {
    "a product of products": lambda x, y, z: (x * 1e-30) * (y * 1e30),
    "a product of a product": lambda x, y, z: x * (y * z),
    "a sum of a sum": lambda x, y, z: x + (y + z),
    "a sum of sums": lambda x, y, z: (x + 1.0) + (y + z),
    "a chosen factor": lambda x, y, z: torch.where(x < 8, x, x * 1e-30) * (y * 1e30),
    "a product and an exponential": lambda x, y, z: torch.special.i0e(x) * torch.exp(y),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", BRACKETS)
def test_brackets_are_kept(name: str, dtype: torch.dtype) -> None:
    x, y, z = (
        torch.tensor(values, dtype=dtype)
        for values in ((4.0, 9.0, 1e8, 1e-30, 0.1), (1e30, 1e30, -1e8, 1e30, 0.2), (1e30, 1e-30, 1.0, 1e-30, 0.3))
    )
    found = BRACKETS[name](x.to(DEVICE), y.to(DEVICE), z.to(DEVICE)).cpu()
    want = BRACKETS[name](x, y, z)
    exactly = {} if "exponential" in name else {"rtol": 0, "atol": 0}  # the CPU rounds those otherwise
    torch.testing.assert_close(found, want, equal_nan=True, **exactly)


def test_quotients_of_the_smallest_numbers_are_finite() -> None:
    x = torch.tensor([3e-39, -6e-39, 2.0**-126], device="cpu")
    y = torch.tensor([1.5e-39, 3e-39, 2.0**-127], device="cpu")
    with torch.tiny.compile_mode("always"):
        torch.testing.assert_close((x.to(DEVICE) / y.to(DEVICE)).cpu(), x / y)


@pytest.mark.parametrize("name", ["floor", "ceil", "trunc", "round"])
def test_whole_parts_of_constants_keep_their_sign(name):
    both(lambda d: getattr(torch.zeros(3, device=d).neg(), name)().signbit())
