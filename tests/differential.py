"""Runs one program on the CPU and on the device under test and compares every live tensor after every step.

A program is a function of the device. Written as a generator it yields after each step, and every tensor among its
local variables (and among what it yields or returns) is compared: values, and everything PyTorch can tell about a
tensor's geometry and aliases. Reading values flushes, so each program runs under several schedules of flushes.

`TORCH_TINY_TEST_DEVICE=cpu` puts the CPU in the place of the device, to work on the tests alone: costs go unchecked.
"""

from __future__ import annotations

import inspect
import os
import random
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

import torch

DEVICE = os.environ.get("TORCH_TINY_TEST_DEVICE", "tiny")
ON_TINY = DEVICE.startswith("tiny")
COMPILES = os.environ.get("TORCH_TINY_COMPILE") != "never"  # nothing is: kernels and programs are not counted
MEMORY_FORMATS = (torch.contiguous_format, torch.channels_last, torch.channels_last_3d)

# When values are read (and the device thereby flushed): at the end alone, after every step, or at random steps.
SCHEDULES = ("lazy", "stepwise", "random")


def flush() -> None:
    """Runs everything the device has pending."""
    if ON_TINY:
        torch.tiny.synchronize()


def data(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0, device: str = "cpu") -> torch.Tensor:
    """The same small numbers for the same arguments, on any device: exact in every dtype."""
    generator = torch.Generator().manual_seed(seed)
    low = 0 if dtype in (torch.bool, torch.uint8) else -8
    numbers = torch.randint(low, 2 if dtype is torch.bool else 9, shape, generator=generator)
    return numbers.to(dtype).to(device)


def normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0, device: str = "cpu") -> torch.Tensor:
    """Standard normal numbers that are the same on every device."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype).to(device)


# ---------------------------------------------------------------------------------------------------------- metadata


def metadata(t: torch.Tensor) -> dict[str, Any]:
    """Everything PyTorch can say about a tensor without reading its values, independent of its device."""
    described = {
        "dtype": t.dtype,
        "layout": t.layout,
        "size": tuple(t.size()),
        "stride": t.stride(),
        "storage_offset": t.storage_offset(),
        "contiguous": tuple(t.is_contiguous(memory_format=f) for f in MEMORY_FORMATS),
        "storage_bytes": t.untyped_storage().nbytes(),
        "data_ptr_offset": t.data_ptr() - t.untyped_storage().data_ptr() if t.numel() else 0,
        "is_view": t._is_view(),
        "base": None if t._base is None else (tuple(t._base.size()), t._base.stride(), t._base._version),
        "requires_grad": t.requires_grad,
        "is_leaf": t.is_leaf,
        "grad_fn": type(t.grad_fn).__name__,
        "is_conj": t.is_conj(),
        "is_neg": t.is_neg(),
    }
    if not t.is_inference():
        described["version"] = t._version
    return described


def aliases(tensors: list[torch.Tensor]) -> list[int]:
    """For every tensor, the first one in the list that shares its storage."""
    first: dict[int, int] = {}
    return [first.setdefault(t.untyped_storage()._cdata, i) for i, t in enumerate(tensors)]


def address_groups(tensors: list[torch.Tensor]) -> list[int]:
    """For every tensor, the first one in the list whose storage begins at the same address (0 bytes have none)."""
    first: dict[int, int] = {}
    kept = [t.untyped_storage() for t in tensors]
    return [first.setdefault(s.data_ptr(), i) if s.nbytes() else -1 for i, s in enumerate(kept)]


def compare_metadata(names: list[str], cpu: list[torch.Tensor], tiny: list[torch.Tensor], where: str) -> None:
    for name, c, t in zip(names, cpu, tiny, strict=True):
        assert t.device.type == DEVICE.split(":")[0], f"{where}: {name} is on {t.device}"
        want, got = metadata(c), metadata(t)
        if "grad" in name:  # how often a formula of autograd writes into its own result is not visible otherwise
            want.pop("version", None)
        differing = {k: (want[k], got[k]) for k in want if want[k] != got[k]}
        assert not differing, f"{where}: {name} differs (cpu, {DEVICE}): {differing}"
    assert aliases(cpu) == aliases(tiny), f"{where}: storages are shared differently among {names}"
    assert address_groups(cpu) == address_groups(tiny), f"{where}: addresses are shared differently among {names}"


def compare_values(name: str, cpu: torch.Tensor, tiny: torch.Tensor, where: str, rtol=None, atol=None) -> None:
    torch.testing.assert_close(
        tiny.detach().cpu(),
        cpu.detach(),
        rtol=rtol,
        atol=atol,
        equal_nan=True,
        check_stride=False,
        msg=lambda text: f"{where}: {name}: {text}",
    )


# ------------------------------------------------------------------------------------------------------------ leaves


def leaves(value: Any, name: str = "result") -> Iterator[tuple[str, Any]]:
    """The tensors and plain numbers inside nested containers and modules, with a name for each. A tensor's gradient
    is a leaf too."""
    if isinstance(value, torch.Tensor):
        yield name, value
        if value.is_leaf and value.grad is not None:
            yield f"{name}.grad", value.grad
    elif isinstance(value, torch.nn.Module):
        for key, inner in value.named_parameters():
            yield from leaves(inner, f"{name}.{key}")
        for key, inner in value.named_buffers():
            yield from leaves(inner, f"{name}.{key}")
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, f"{name}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for i, inner in enumerate(value):
            yield from leaves(inner, f"{name}[{i}]")
    elif isinstance(value, (bool, int, float, complex)):
        yield name, value


@dataclass
class Step:
    """What one side showed after one step: its leaves, or the exception that ended it."""

    leaves: dict[str, Any] = field(default_factory=dict)
    error: Exception | None = None
    last: bool = False


def steps(program: Callable, device: str) -> Iterator[Step]:
    """Runs a program step by step on one device."""
    try:
        running = program(device)
        if not inspect.isgenerator(running):
            yield Step(dict(leaves(running)), last=True)
            return
        while True:
            try:
                yielded = next(running)
            except StopIteration as stop:
                if stop.value is not None:
                    yield Step(dict(leaves(stop.value)), last=True)
                return
            local = {k: v for k, v in running.gi_frame.f_locals.items() if k != "device"}
            found = dict(pair for name, value in local.items() for pair in leaves(value, name))
            yield Step(found | dict(leaves(yielded, "yielded")))
    except Exception as error:
        yield Step(error=error, last=True)


# ------------------------------------------------------------------------------------------------------------ errors


def message_of(error: BaseException) -> str:
    """An exception's text with the device's name and addresses taken out."""
    text = str(error).split("\nException raised from")[0]
    text = re.sub(r"\b(tiny|privateuseone|PrivateUse1)(:\d+)?\b", "cpu", text)
    text = re.sub(r"\btiny(\w+)Type\b", r"torch.\1Tensor", text)
    return re.sub(r"0x[0-9a-f]+", "0x", text).strip()


def assert_same_error(cpu: BaseException | None, tiny: BaseException | None, where: str = "program") -> None:
    """Both sides raised the same type with the same message, or neither raised."""
    if cpu is None and tiny is not None:
        raise AssertionError(
            f"{where}: the CPU raises nothing, {DEVICE} raises {type(tiny).__name__}: {tiny}"
        ) from tiny
    if cpu is not None and tiny is None:
        raise AssertionError(f"{where}: the CPU raises {type(cpu).__name__}: {cpu}, {DEVICE} raises nothing") from cpu
    if cpu is not None:
        want, got = (type(cpu).__name__, message_of(cpu)), (type(tiny).__name__, message_of(tiny))
        if want != got:
            raise AssertionError(
                f"{where}: exceptions differ\n cpu:  {want[0]}: {want[1]}\n {DEVICE}: {got[0]}: {got[1]}"
            ) from tiny


def raised_by(action: Callable[[], Any]) -> Exception | None:
    try:
        action()
    except Exception as error:
        return error
    return None


def same_error(action: Callable[..., Any], make: Callable[[str], Any] = lambda device: device) -> str:
    """Both devices refuse `action(make(device))` with the CPU's exception, and what `make` made keeps its values and
    metadata. Returns the message."""
    made = {device: make(device) for device in ("cpu", DEVICE)}
    before = [(name, t.detach().cpu().clone()) for name, t in leaves(made[DEVICE]) if isinstance(t, torch.Tensor)]
    errors = {device: raised_by(partial(action, made[device])) for device in made}
    assert errors["cpu"] is not None, "the CPU accepts this: not an error case"
    assert_same_error(errors["cpu"], errors[DEVICE])
    cpu, tiny = (dict(leaves(made[device])) for device in ("cpu", DEVICE))
    tensors = [name for name, t in cpu.items() if isinstance(t, torch.Tensor)]
    compare_metadata(tensors, [cpu[n] for n in tensors], [tiny[n] for n in tensors], "after the error")
    for name, value in before:
        compare_values(name, value, tiny[name], "after the error", rtol=0, atol=0)
    return message_of(errors["cpu"])


# -------------------------------------------------------------------------------------------------------------- both


def both(
    program: Callable[[str], Any],
    *,
    schedules: tuple[str, ...] = SCHEDULES,
    rtol: float | None = None,
    atol: float | None = None,
    may_raise: bool = False,
) -> None:
    """Runs `program` on both devices under every schedule of flushes; raises where they differ. A program that the CPU
    refuses is a mistake of the test unless it says that it may be refused."""
    for schedule in schedules:
        _run(program, schedule, rtol, atol, may_raise)


def _run(program: Callable, schedule: str, rtol, atol, may_raise: bool) -> None:
    chance = random.Random(zlib.crc32(program.__qualname__.encode()))
    previous: tuple[str, Step, Step] | None = None
    torch.manual_seed(0)
    reference, tested = steps(program, "cpu"), steps(program, DEVICE)
    for number, want in enumerate(reference):
        where = f"{program.__qualname__}, schedule {schedule}, step {number}"
        got = next(tested, Step(error=RuntimeError("the program ended early")))
        if want.error is not None and not may_raise:
            raise AssertionError(f"{where}: the CPU itself refuses this program") from want.error
        assert_same_error(want.error, got.error, where)
        if want.error is None:
            read = schedule == "stepwise" or (schedule == "random" and chance.random() < 0.4)
            compare_step(want, got, where, read, rtol, atol)
            previous = where, want, got
        if schedule == "random" and chance.random() < 0.3:
            flush()
    assert previous is not None or want.error is not None, f"{program.__qualname__} shows nothing"
    if previous is not None:
        compare_step(previous[1], previous[2], previous[0] + " (read at the end)", read=True, rtol=rtol, atol=atol)


def compare_step(want: Step, got: Step, where: str, read: bool, rtol=None, atol=None) -> None:
    """Metadata of every tensor and value of every number; with `read`, values of every tensor."""
    assert list(want.leaves) == list(got.leaves), f"{where}: different leaves {list(want.leaves)} {list(got.leaves)}"
    tensors = [name for name, value in want.leaves.items() if isinstance(value, torch.Tensor)]
    compare_metadata(tensors, [want.leaves[n] for n in tensors], [got.leaves[n] for n in tensors], where)
    for name, value in want.leaves.items():
        if not isinstance(value, torch.Tensor):
            number = got.leaves[name]
            torch.testing.assert_close(
                number, value, rtol=rtol, atol=atol, equal_nan=True, msg=lambda m, name=name: f"{where}: {name}: {m}"
            )
        elif read:
            compare_values(name, value, got.leaves[name], where, rtol, atol)


# -------------------------------------------------------------------------------------------------------------- cost


class Cost:
    """What the device did inside a `with` block, from `torch.tiny.stats()`."""

    COUNTERS = ("nodes", "flushes", "compiles", "replays", "kernels", "bytes_moved")

    def __enter__(self) -> Self:
        flush()
        self.before = torch.tiny.stats() if ON_TINY else {}
        return self

    def __exit__(self, kind, value, trace) -> None:
        after = torch.tiny.stats() if ON_TINY else {}
        self.spent = {name: after[name] - self.before[name] for name in self.COUNTERS} if ON_TINY else {}
        self.fallbacks = {
            name: count - self.before["fallbacks"].get(name, 0)
            for name, count in after.get("fallbacks", {}).items()
            if count != self.before["fallbacks"].get(name, 0)
        }

    def expect(self, **exactly: int) -> None:
        """Every named counter moved by exactly this much; programs and kernels count where any are compiled."""
        counted = [k for k in exactly if ON_TINY and (COMPILES or k in ("nodes", "flushes"))]
        wrong = {k: (self.spent[k], exactly[k]) for k in counted if self.spent[k] != exactly[k]}
        assert not wrong, f"counters moved otherwise than expected (got, expected): {wrong}; all: {self.spent}"

    def at_most(self, **bounds: int) -> None:
        """No named counter moved by more than this."""
        wrong = {k: (self.spent[k], v) for k, v in bounds.items() if ON_TINY and self.spent[k] > v}
        assert not wrong, f"counters moved too far (got, bound): {wrong}; all: {self.spent}"

    def no_fallbacks(self) -> None:
        assert not self.fallbacks, f"operators ran on the CPU: {self.fallbacks}"
