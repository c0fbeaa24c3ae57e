"""Threads that record, read, index and fail at the same time: each finds its own values. `make sanitize` runs it under
ThreadSanitizer."""

import threading

import pytest
import torch

from tests.differential import DEVICE

ROUNDS, THREADS = 12, 4


@pytest.fixture(params=["never", "always"], autouse=True)
def mode(request):
    with torch.tiny.compile_mode(request.param):
        yield request.param


def at_once(work) -> None:
    """`work(number)` in several threads, which begin together; what one raises is raised."""
    raised: list[BaseException] = []
    start = threading.Barrier(THREADS)

    def run(number: int) -> None:
        try:
            start.wait()
            work(number)
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if raised:
        raise raised[0]


def test_each_thread_reads_its_own_updates():
    def work(number: int) -> None:
        x = torch.zeros(5, device=DEVICE)
        for step in range(ROUNDS):
            x[step % 5] += number
            view = x[1:].mul_(1)
        assert x.sum().item() == number * ROUNDS and view.shape == (4,)

    at_once(work)


def test_indices_of_a_table_that_others_index_and_write():
    table = torch.arange(12.0, device=DEVICE).reshape(4, 3)
    places = torch.tensor([3, 0, 1], device=DEVICE)

    def work(number: int) -> None:
        mine = places.clone()
        for _ in range(ROUNDS):
            assert table[places].sum().item() == 9 + 10 + 11 + 0 + 1 + 2 + 3 + 4 + 5
            mine.add_(1).remainder_(4)
            assert table.index_select(0, mine).shape == (3, 3)
            with pytest.raises(IndexError):
                table[mine + 4]

    at_once(work)


def test_what_one_thread_loses_others_keep():
    kept = torch.ones(4, device=DEVICE)

    def work(number: int) -> None:
        for step in range(ROUNDS):
            mine = kept * step
            if number % 2:
                with pytest.raises(torch.linalg.LinAlgError):
                    torch.linalg.eigvalsh(torch.full((3, 3), float("nan"), device=DEVICE))
            assert mine.tolist() == [step] * 4

    at_once(work)


def test_counts_and_bounds_are_asked_for_while_others_record():
    def work(number: int) -> None:
        x = torch.ones(3, device=DEVICE)
        for _ in range(ROUNDS):
            x = x + 1
            torch.tiny.stats()
            torch.tiny._C.pending(0)
            torch.tiny._C.known_range(x.long())
        assert x.tolist() == [1 + ROUNDS] * 3

    at_once(work)


def test_backward_passes_in_several_threads():
    weight = torch.ones(3, device=DEVICE)

    def work(number: int) -> None:
        for _ in range(ROUNDS // 2):
            x = torch.full((3,), float(number), device=DEVICE, requires_grad=True)
            (x * x * weight).sum().backward()
            assert x.grad.tolist() == [2.0 * number] * 3

    at_once(work)
