"""Streams and events: one order of work, whichever stream is current, and events that tell when it has run."""

from __future__ import annotations

import threading

import pytest
import torch

from tests.differential import ON_TINY, data, flush
from torch_tinygrad import _C

pytestmark = pytest.mark.skipif(not ON_TINY, reason="about the device alone")


def test_streams_have_names_and_one_is_current():
    default = torch.tiny.default_stream()
    assert torch.tiny.current_stream() == default and default.stream_id == 0
    first, second = torch.tiny.Stream(), torch.Stream(device="tiny")
    assert len({default.stream_id, first.stream_id, second.stream_id}) == 3
    assert isinstance(first, torch.Stream) and first.device == torch.device("tiny:0")
    with torch.tiny.stream(first):
        assert torch.tiny.current_stream() == first
        with second:
            assert torch.accelerator.current_stream() == second
        with torch.tiny.stream(None):
            assert torch.tiny.current_stream() == first
    assert torch.tiny.current_stream() == default
    torch.accelerator.set_stream(second)
    seen = []
    thread = threading.Thread(target=lambda: seen.append(torch.tiny.current_stream()))
    thread.start()
    thread.join()
    torch.tiny.set_stream(default)
    assert seen == [default]  # of its own thread


def test_work_of_all_streams_is_in_one_order():
    side = torch.tiny.Stream()
    x = data(64).to("tiny")
    y = x * 2
    side.wait_stream(torch.tiny.current_stream())
    with torch.tiny.stream(side):
        z = y + 1
        x.zero_()
        z.record_stream(side)
    torch.tiny.current_stream().wait_stream(side)
    assert torch.equal((z + x).cpu(), data(64) * 2 + 1)


def test_gradients_cross_streams():
    side = torch.tiny.Stream()
    x = data(8, 8).to("tiny").requires_grad_()
    with torch.tiny.stream(side):
        y = (x * x).sum()
    (y + x.sum()).backward()
    assert torch.equal(x.grad.cpu(), 2 * data(8, 8) + 1)


def test_an_event_runs_what_was_recorded_before_it():
    flush()
    x = torch.ones(16, device="tiny") + 1
    event = torch.tiny.Event()
    assert event.query() and _C.pending(0) > 0  # never recorded: nothing to run
    event.record()
    assert _C.pending(0) > 0
    event.wait()
    assert _C.pending(0) > 0
    event.synchronize()
    assert _C.pending(0) == 0
    y = x + 1
    assert event.query() and _C.pending(0) > 0  # what came later stays pending
    assert torch.tiny.current_stream().query() and _C.pending(0) == 0
    assert y.sum().item() == 48


@pytest.mark.parametrize("made", [{}, {"device": "tiny"}], ids=["default", "named"])
def test_events_with_a_time_stand_for_when_work_was_done(made):
    start, middle, end = (torch.tiny.Event(enable_timing=True, **made) for _ in range(3))
    with pytest.raises(ValueError, match="recorded"):
        start.elapsed_time(end)
    x = torch.ones(256, 256, device="tiny")
    start.record()
    assert _C.pending(0) == 0
    y = x @ x
    middle.record()
    assert _C.pending(0) == 0  # its time is that of the product done
    y = y @ x
    end.record()
    assert 0 < start.elapsed_time(middle) < start.elapsed_time(end)
    assert start.elapsed_time(end) == pytest.approx(start.elapsed_time(middle) + middle.elapsed_time(end))
    with pytest.raises(ValueError, match="enable_timing"):
        start.elapsed_time(torch.tiny.Event(enable_timing=False, **made))


def test_record_event_of_a_stream():
    event = torch.tiny.Stream().record_event()
    assert isinstance(event, torch.tiny.Event) and event.query()
    torch.tiny.current_stream().wait_event(event)
    assert isinstance(torch.Stream(device="tiny").record_event(), torch.Event)


def test_torch_accelerator_knows_the_device():
    assert torch.accelerator.current_accelerator() == torch.device("tiny")
    assert torch.accelerator.is_available() and torch.accelerator.device_count() == torch.tiny.device_count()
    x = torch.ones(4, device="tiny") + 1
    torch.accelerator.synchronize()
    assert _C.pending(0) == 0 and x.sum().item() == 8
    assert torch.float32 in torch.accelerator.get_device_capability()["supported_dtypes"]
    assert torch.tiny.get_device_capability() == torch.accelerator.get_device_capability()
    assert torch.tiny.is_bf16_supported() == (torch.bfloat16 in torch.tiny.get_device_capability()["supported_dtypes"])
    properties = torch.tiny.get_device_properties()
    assert properties.name == torch.tiny.get_device_name() and properties.multi_processor_count >= 1
