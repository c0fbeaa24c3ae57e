"""Memory shared with numpy, the CPU's tensors, tinygrad and other processes: one memory, seen by both sides."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy
import pytest
import torch

import torch_tinygrad
from tests.differential import ON_TINY, data, flush
from torch_tinygrad.choice import is_host

pytestmark = [
    pytest.mark.skipif(not ON_TINY, reason="about the device alone"),
    pytest.mark.skipif(not is_host(), reason="of the host's memory"),
]
DTYPES = [torch.float32, torch.float16, torch.int64, torch.uint8, torch.bool, torch.complex64]


@pytest.mark.parametrize("dtype", DTYPES)
def test_numpy_sees_the_tensor_and_its_writes(dtype):
    x = data(4, 6, dtype=dtype).to("tiny")
    view = x.t()[1:4]
    seen, part = numpy.from_dlpack(x), numpy.from_dlpack(view)
    assert numpy.array_equal(seen, data(4, 6, dtype=dtype).numpy()) and numpy.array_equal(part, seen.T[1:4])
    x.zero_()  # all of it is replaced: the new value lies where the old one lay
    view[0] = 1
    flush()
    assert numpy.array_equal(part[0], numpy.ones(4)) and seen.sum() == 4
    part[1] = 1
    assert (x + x).cpu().sum() == (torch.ones(8, dtype=dtype) + torch.ones(8, dtype=dtype)).sum()


def test_torch_takes_it_and_gives_it_back():
    x = data(8).to("tiny")
    host = torch.from_dlpack(x)
    assert host.device.type == "cpu" and torch.equal(host, data(8))
    host.fill_(5)
    assert x.sum().item() == 40
    again = torch.from_dlpack(host, device="tiny")
    again[0] = 1
    flush()
    assert host[0] == 1
    array = numpy.arange(6.0).reshape(2, 3)
    ours = torch.from_dlpack(array, device="tiny")
    ours.mul_(2)
    flush()
    assert array.tolist() == [[0, 2, 4], [6, 8, 10]]
    copied = torch.from_dlpack(array, device="tiny", copy=True)
    copied.zero_()
    flush()
    assert array.sum() == 30


def test_tensors_of_one_memory_are_aliases():
    host = torch.arange(6.0)
    whole, part = (torch.from_dlpack(t, device="tiny") for t in (host, host[2:4]))
    part.add_(10)
    assert whole.tolist() == [0, 1, 12, 13, 4, 5]
    del whole, part
    gc.collect()
    assert host[2] == 12
    array = numpy.arange(6.0)
    whole, part = (torch.from_dlpack(a, device="tiny") for a in (array, array[3:]))
    part.zero_()
    assert whole.tolist() == [0, 1, 2, 0, 0, 0]
    other = numpy.arange(6.0)
    kept = torch.from_dlpack(other[:3], device="tiny")
    with pytest.raises(RuntimeError, match="take all of it first"):
        torch.from_dlpack(other, device="tiny")
    assert kept.sum().item() == 3


def test_memory_outlives_its_maker():
    seen = numpy.from_dlpack(torch.full((1000,), 3.0, device="tiny"))
    gc.collect()
    for _ in range(5):
        torch.ones(1000, device="tiny").add_(1).cpu()
    assert seen.sum() == 3000
    x = torch.from_dlpack(numpy.full(1000, 2.0), device="tiny")
    gc.collect()
    assert x.sum().item() == 2000


def test_what_cannot_be_exported_is_refused_as_on_the_cpu():
    for device in ("cpu", "tiny"):
        with pytest.raises(BufferError, match="require gradient"):
            torch.ones(2, device=device, requires_grad=True).__dlpack__()
        with pytest.raises(BufferError, match="conjugate bit"):
            torch.ones(2, dtype=torch.complex64, device=device).conj().__dlpack__()


def test_indices_that_others_write_are_looked_at_again():
    index = torch.zeros(3, dtype=torch.int64, device="tiny")
    table = data(4, 2).to("tiny")
    seen = numpy.from_dlpack(index)
    assert torch.equal(table[index].cpu(), data(4, 2)[[0, 0, 0]])
    seen[:] = [1, 2, 3]
    assert torch.equal(table[index].cpu(), data(4, 2)[[1, 2, 3]])
    seen[0] = 9
    with pytest.raises(IndexError):
        table[index]


def test_weights_that_others_write_are_not_kept_in_another_layout():
    weight = data(32, 32, 3, 3).to("tiny")
    x = data(4, 32, 16, 16).to("tiny")
    seen = numpy.from_dlpack(weight)
    results = []
    for number in range(4):
        seen[:] = number
        results.append(torch.nn.functional.conv2d(x, weight, padding=1).cpu())
    for number, result in enumerate(results):
        torch.testing.assert_close(result, results[1] * number)


def test_tinygrad_computes_on_our_memory_and_we_on_its():
    from tinygrad import Tensor

    x = data(4, 6).to("tiny")
    theirs, part = torch_tinygrad.to_tinygrad(x), torch_tinygrad.to_tinygrad(x.t()[::2])
    assert theirs.shape == (4, 6) and (theirs * 2).tolist() == (data(4, 6) * 2).tolist()
    assert part.tolist() == data(4, 6).t()[::2].tolist()
    x.add_(1)
    flush()
    assert (theirs + 0).tolist() == (data(4, 6) + 1).tolist() and part.tolist() == (data(4, 6) + 1).t()[::2].tolist()
    made = (Tensor([0.0, 1, 2, 3, 4, 5]) * 2).realize()
    ours = torch_tinygrad.from_tinygrad(made)
    assert ours.device.type == "tiny" and ours.tolist() == [0, 2, 4, 6, 8, 10]
    ours[0] = 7
    flush()
    assert made.tolist()[0] == 7
    assert torch_tinygrad.from_tinygrad(Tensor.ones(2, 3)).shape == (2, 3)


QUEUE = """
    import torch
    import torch.multiprocessing as mp


    def child(tasks, answers):
        t, p, w = tasks.get()
        assert t.device.type == "tiny" and isinstance(p, torch.nn.Parameter) and p.requires_grad, (t, p)
        t.add_(1)
        torch.tiny.synchronize()
        answers.put((t * 2, w.sum().item()))
        tasks.get()


    if __name__ == "__main__":
        mp.set_start_method("spawn")
        tasks, answers = mp.Queue(), mp.Queue()
        process = mp.Process(target=child, args=(tasks, answers))
        process.start()
        t = torch.arange(4.0, device="tiny")
        w = torch.ones(3, 3, device="tiny").t()[1:]
        t.share_memory_()
        tasks.put((t, torch.nn.Parameter(torch.ones(2, device="tiny")), w))
        doubled, total = answers.get(timeout=120)
        assert doubled.device.type == "tiny" and doubled.tolist() == [2, 4, 6, 8] and total == 6
        assert t.tolist() == [1, 2, 3, 4], t  # one memory
        tasks.put(None)
        process.join(60)
        assert process.exitcode == 0
        t.add_(1)
        assert t.sum().item() == 14
        print("done")
"""


def test_other_processes_get_tensors_and_write_them(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(QUEUE))
    path = os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "TORCH_TINY_COMPILE": "never"}
    command = [sys.executable, str(program)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0 and "done" in done.stdout, done.stderr[-3000:]


def test_bytes_of_storages_are_read_and_written():
    """By index, as those of the CPU; what numpy and legacy storages read of a tensor is what they read on the CPU."""
    found = []
    for device in ("cpu", "tiny"):
        x = torch.arange(4, dtype=torch.int32, device=device) + 1
        storage = x.untyped_storage()
        before = [storage[i] for i in range(8)]
        storage[4] = 9
        found.append((before, x.tolist(), x.storage()[1], hasattr(x, "__array_interface__")))
    assert found[0] == found[1]


def test_generators_and_devices_are_pickled():
    """With their state; streams are not, on any device."""
    generator = torch.Generator("tiny").manual_seed(7)
    torch.rand(3, device="tiny", generator=generator)
    copied = pickle.loads(pickle.dumps(generator))
    draws = [torch.rand(3, device="tiny", generator=g).tolist() for g in (generator, copied)]
    assert copied.device == generator.device and draws[0] == draws[1]
    assert pickle.loads(pickle.dumps(torch.device("tiny:0"))) == torch.device("tiny:0")
    with pytest.raises(TypeError, match=r"cannot pickle '.*Stream' object"):
        pickle.dumps(torch.Stream("tiny"))


def test_lazy_clones_have_the_layout_and_a_memory_of_their_own():
    def program(device):
        x = torch.arange(12.0, device=device).view(3, 4).t()[1:, ::2]
        clone = x._lazy_clone()
        x.add_(1)
        clone[0].mul_(10)
        return x, clone, clone.stride(), clone.storage_offset(), clone.untyped_storage().nbytes()

    *tensors, stride, offset, nbytes = program("tiny")
    *expected, cpu_stride, cpu_offset, cpu_nbytes = program("cpu")
    assert (stride, offset, nbytes) == (cpu_stride, cpu_offset, cpu_nbytes)
    torch.testing.assert_close([t.cpu() for t in tensors], expected)
