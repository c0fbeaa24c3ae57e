"""The layers that PyTorch calls whole in inference are compiled as what they are made of."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from tests.differential import COMPILES, DEVICE, ON_TINY, Cost, data

pytestmark = [
    pytest.mark.skipif(not ON_TINY, reason="the fast path is chosen by device"),
    pytest.mark.usefixtures("cpu_operators"),
]


def on_both(module, *inputs, **options):
    """The module's results in inference, and how many fallbacks they took."""
    module.eval()
    with torch.no_grad():
        expected = module(*inputs, **options)
        moved = copy.deepcopy(module).to(DEVICE)
        to_device = {name: v.to(DEVICE) if isinstance(v, torch.Tensor) else v for name, v in options.items()}
        places = {id(x): x.to(DEVICE) for x in inputs}  # what is the same tensor stays so
        before = sum(torch.tiny.stats()["fallbacks"].values())
        found = moved(*(places[id(x)] for x in inputs), **to_device)
        if isinstance(found, tuple):
            found, expected = found[0], expected[0]
        torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-5)
    return sum(torch.tiny.stats()["fallbacks"].values()) - before


@pytest.mark.skipif(not COMPILES, reason="counts kernels")
def test_an_encoder_in_inference_takes_no_fallback_and_fifteen_steps_a_layer():
    torch.manual_seed(0)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2)
    with Cost() as cost:
        assert on_both(encoder, data(4, 16, 32)) == 0
    cost.at_most(kernels=30)


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_every_kind_of_layer_gives_the_values_of_the_cpu(norm_first, activation):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 24, activation=activation, norm_first=norm_first, batch_first=True)
    taken_apart = on_both(layer, data(3, 5, 16))
    assert taken_apart == 0 or not COMPILES
    on_both(layer, data(3, 5, 16), src_mask=torch.ones(5, 5).triu(1).bool())


def test_attention_alone_does_too():
    torch.manual_seed(0)
    attention, x = nn.MultiheadAttention(16, 2, batch_first=True).eval(), data(3, 5, 16)
    assert on_both(attention, x, x, x, need_weights=False) == 0 or not COMPILES
    on_both(attention, x, x, x, need_weights=True)
    on_both(attention, x, data(3, 7, 16), data(3, 7, 16), need_weights=False)
