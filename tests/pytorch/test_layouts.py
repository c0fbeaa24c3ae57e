"""Sparse and nested tensors: the CPU's kernels on the device's memory, counted, with the CPU's results."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from tests.differential import DEVICE, ON_TINY, data

pytestmark = [
    pytest.mark.skipif(not ON_TINY, reason="about the device alone"),
    pytest.mark.filterwarnings("ignore"),
]


def dense(device: str) -> torch.Tensor:
    return (data(4, 5) * (data(4, 5, seed=1) > 3)).to(device)


def same(program) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        want, got = program("cpu"), program(DEVICE)
    for one, other in zip(want, got, strict=True):
        assert other.device.type == "tiny" and other.layout == one.layout and other.shape == one.shape
        other = other.cpu()
        if one.layout != torch.strided:
            one, other = one.to_dense(), other.to_dense()
        torch.testing.assert_close(other, one)


def test_gradients_of_an_embedding_are_sparse_and_train_it():
    def program(device):
        torch.manual_seed(0)
        table = nn.Embedding(6, 3, sparse=True).to(device)
        results = []
        for make in (lambda p: torch.optim.SGD(p, lr=0.1), lambda p: torch.optim.SparseAdam(list(p), lr=0.1)):
            optimizer = make(table.parameters())
            for step in range(3):
                optimizer.zero_grad()
                table(torch.tensor([1, step, 1], device=device)).square().sum().backward()
                assert table.weight.grad.is_sparse and table.weight.grad.device.type == torch.device(device).type
                optimizer.step()
            results.append(table.weight.detach().clone())
        return results

    same(program)


def test_an_encoder_with_padding_takes_the_fast_path():
    def program(device):
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        encoder = nn.TransformerEncoder(layer, 2).eval().to(device)
        padding = torch.tensor([[False, False, False], [False, True, True]]).to(device)
        with torch.no_grad():
            return (encoder(data(2, 3, 8).to(device) / 8, src_key_padding_mask=padding),)

    same(program)


def test_they_are_counted():
    before = dict(torch.tiny.stats()["fallbacks"])
    dense(DEVICE).to_sparse()
    assert torch.tiny.stats()["fallbacks"]["aten::_to_sparse"] == before.get("aten::_to_sparse", 0) + 1


@pytest.mark.parametrize("layout", (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc))
@pytest.mark.parametrize("dense", (lambda x: x.conj(), lambda x: x.mH, lambda x: x.conj().imag.to(x.dtype)))
def test_conjugates_and_negatives_of_dense_tensors_are_multiplied_as_such(layout, dense, cpu_operators):
    values = torch.complex(data(4, 4).float(), data(4, 4, seed=1).float())

    def product(device: str) -> torch.Tensor:
        sparse = (
            torch.complex(data(4, 4, seed=2).float(), data(4, 4, seed=3).float()).to_sparse(layout=layout).to(device)
        )
        return torch.mm(sparse, dense(values.to(device))).cpu()

    torch.testing.assert_close(product(DEVICE), product("cpu"))
