"""After any failure what does not depend on it is computed, what does is lost with the reason, and nothing is old."""

import sys

import pytest
import torch

from tests.differential import DEVICE

HUGE = 1 << 42  # elements: more than any machine has


@pytest.fixture(params=["never", "always", "auto"], autouse=True)
def mode(request):
    with torch.tiny.compile_mode(request.param):
        yield request.param


def test_no_memory_for_one_tensor_costs_no_other():
    a = torch.zeros(5, device=DEVICE)
    a.sum().item()
    view = a[1:3]
    a.add_(100)
    fresh = a * 2
    with pytest.raises(torch.OutOfMemoryError):
        torch.ones(HUGE, device=DEVICE).sum().item()
    view.add_(1)
    assert a.tolist() == [100, 101, 101, 100, 100] and fresh.tolist() == [200] * 5


def test_a_step_that_refuses_values_raises_where_it_is_called_and_costs_nothing():
    a = torch.zeros(5, device=DEVICE)
    a.sum().item()
    a.add_(1)
    for bad in (float("nan"), float("inf")):
        with pytest.raises(torch.linalg.LinAlgError):
            torch.linalg.eigvalsh(torch.full((3, 3), bad, device=DEVICE))
    a.add_(1)
    assert a.tolist() == [2] * 5
    assert torch.linalg.eigvalsh(torch.eye(3, device=DEVICE)).tolist() == [1, 1, 1]


def test_what_depends_on_a_failure_is_lost_with_the_reason():
    torch.tiny._C.set_bounds(131072, 1024, 1 << 60)
    try:
        x = torch.ones(4, device=DEVICE)
        x.sum().item()
        huge = torch.ones(HUGE, device=DEVICE)
        total = huge.sum()
        after = total + x
        other = x * 3
        x.add_(after)
        kept = torch.zeros(2, device=DEVICE)
        kept[0] = 7
        with pytest.raises(torch.OutOfMemoryError):
            torch.tiny.synchronize()
        assert other.tolist() == [3] * 4 and kept.tolist() == [7, 0]
        for lost in (huge, total, after, x):
            with pytest.raises(RuntimeError, match="computing it failed earlier: aten::.*memory"):
                lost.view(-1)[:1].tolist()
    finally:
        torch.tiny._C.set_bounds(131072, 1024, 2 << 30)


class Interrupt:
    """Raises KeyboardInterrupt at the n-th call into Python while it is in force."""

    def __init__(self, at: int):
        self.left = at
        self.raised = False

    def __call__(self, frame, event, argument):
        if event != "call" or self.raised:
            return
        self.left -= 1
        if self.left <= 0:
            self.raised = True
            raise KeyboardInterrupt

    def __enter__(self):
        sys.setprofile(self)
        return self

    def __exit__(self, *_):
        sys.setprofile(None)


def test_an_interrupt_at_any_call_into_python_loses_nothing():
    """Calls are counted further and further apart, until a whole run passes without an interrupt."""
    at, tried = 1, 0
    while True:
        size = 5 + tried  # a trace that nobody has seen
        a, b = torch.arange(float(size), device=DEVICE), torch.zeros(size, device=DEVICE)
        a.tolist()
        try:
            with Interrupt(at) as interrupt:
                a.mul_(2)
                b[1] = 5
                c = a[1:] + b[:-1].exp()
                first = c.tolist()
        except KeyboardInterrupt:
            pass
        # Statements that were interrupted did not happen; those before them did.
        want_a = torch.arange(float(size))
        done = a.tolist()
        assert done in (want_a.tolist(), (want_a * 2).tolist())
        assert b.tolist() in ([0.0] * size, [0.0, 5.0] + [0.0] * (size - 2))
        if not interrupt.raised:
            want = (want_a * 2)[1:] + torch.tensor(b.tolist())[:-1].exp()
            torch.testing.assert_close(torch.tensor(first), want)
            break
        tried += 1
        at = at + 1 if at < 30 else int(at * 1.7)
    assert tried > 0 or torch.tiny.stats()["direct"] > 0


def test_random_programs_survive_faults(mode, cpu_operators):
    from tests.faults import FAULTS, Row, inject

    for fault in FAULTS:
        row = Row()
        inject(fault, mode, 0, row)
        assert (row.lost, row.wrong, row.unclear) == (0, 0, 0), fault.__name__
