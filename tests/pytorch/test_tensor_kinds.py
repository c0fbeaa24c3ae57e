"""Every kind of tensor that PyTorch has: compressed sparse, COO, quantized, float8, complex32, nested and
jagged. What nothing else computes the CPU's kernels do, counted; the results are the CPU's."""

from __future__ import annotations

import copy
import io

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.ao import quantization

from tests.differential import DEVICE, ON_TINY

pytestmark = [
    pytest.mark.skipif(not ON_TINY, reason="about the device alone"),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("cpu_operators"),
]

DENSE = torch.tensor([[0, 1.0, 0, 2], [3, 0, 0, 0], [0, 0, 4, 5], [0, 6, 0, 0]])
COLUMNS = torch.arange(8.0).reshape(4, 2) + 1


class Given:
    """The same tensors of every kind, on a device."""

    def __init__(self, device: str):
        self.device = device
        self.dense, self.columns = DENSE.to(device), COLUMNS.to(device)
        places = self.to([0, 2, 3, 5, 6]), self.to([1, 3, 0, 2, 3, 1])
        self.csr = torch.sparse_csr_tensor(*places, self.to([1.0, 2, 3, 4, 5, 6]))
        self.coo = torch.sparse_coo_tensor(self.to([[0, 1, 2], [1, 0, 2]]), self.to([1.0, 2, 3]), (4, 4))
        self.quantized = torch.quantize_per_tensor(self.dense, 0.1, 3, torch.quint8)
        self.nested = torch.nested.nested_tensor([self.columns, self.columns[:2]])
        self.jagged = torch.nested.nested_tensor([self.columns, self.columns[:2]], layout=torch.jagged)

    @property
    def float8(self) -> torch.Tensor:
        return self.dense.to(torch.float8_e4m3fn)

    @property
    def complex32(self) -> torch.Tensor:  # hardware may lack it
        return self.dense.to(torch.complex32)

    def to(self, values) -> torch.Tensor:
        return torch.tensor(values).to(self.device)


def same(program) -> None:
    want, got = program(Given("cpu")), program(Given(DEVICE))
    if not isinstance(want, torch.Tensor):
        assert want == got
        return
    assert got.device.type == "tiny" and got.layout == want.layout and got.dtype == want.dtype
    got = got.cpu()
    if want.is_quantized:
        assert want.qscheme() == got.qscheme()
        want, got = want.dequantize(), got.dequantize()
    elif want.is_nested and want.layout is torch.jagged:
        want, got = want.values(), got.values()
    elif want.is_nested:
        want, got = want.to_padded_tensor(-1.0), got.to_padded_tensor(-1.0)
    elif want.layout != torch.strided:
        want, got = want.to_dense(), got.to_dense()
    if want.dtype.is_floating_point and want.dtype.itemsize == 1:
        want, got = want.view(torch.uint8), got.view(torch.uint8)
    torch.testing.assert_close(got, want, equal_nan=True)


def loaded(tensor: torch.Tensor) -> torch.Tensor:
    file = io.BytesIO()
    torch.save(tensor, file)
    file.seek(0)
    return torch.load(file)


def gradient(matrix: torch.Tensor, given: Given) -> torch.Tensor:
    weight = given.columns.clone().requires_grad_()
    (matrix @ weight).sum().backward()
    return weight.grad


def maximum_gradient(matrix: torch.Tensor, given: Given) -> torch.Tensor:
    weight = given.columns.clone().requires_grad_()
    torch.sparse.mm(matrix.requires_grad_(), weight, "amax").sum().backward()
    return weight.grad + matrix.grad.values().sum()


def nested_gradient(given: Given, layout: torch.layout) -> torch.Tensor:
    leaves = [given.columns.clone().requires_grad_(), given.columns[:2].clone().requires_grad_()]
    nested = torch.nested.as_nested_tensor(leaves, layout=layout)
    (nested * nested).to_padded_tensor(0.0).sum().backward()
    return leaves[0].grad


SPARSE = {
    "to csr": lambda g: g.dense.to_sparse_csr(),
    "to csc": lambda g: g.dense.to_sparse_csc(),
    "to bsr": lambda g: g.dense.to_sparse_bsr((2, 2)),
    "to bsc": lambda g: g.dense.to_sparse_bsc((2, 2)),
    "csr moved": lambda g: DENSE.to_sparse_csr().to(g.device),
    "bsr moved": lambda g: DENSE.to_sparse_bsr((2, 2)).to(g.device),
    "coo moved": lambda g: DENSE.to_sparse().to(g.device),
    "csr to csc": lambda g: g.csr.to_sparse_csc(),
    "csr to coo": lambda g: g.csr.to_sparse(),
    "csr parts": lambda g: g.csr.crow_indices() + g.csr.values()[:5],
    "csr @ dense": lambda g: g.csr @ g.columns,
    "csr @ vector": lambda g: g.csr @ g.columns[:, 0],
    "csr @ csr": lambda g: g.csr @ g.csr,
    "csc @ dense": lambda g: g.dense.to_sparse_csc() @ g.columns,
    "bsr @ dense": lambda g: g.dense.to_sparse_bsr((2, 2)) @ g.columns,
    "csr addmm": lambda g: torch.addmm(g.columns, g.csr, g.columns),
    "csr linear": lambda g: F.linear(g.columns.t(), g.csr),
    "csr sampled addmm": lambda g: torch.sparse.sampled_addmm(g.csr, g.columns, g.columns.t().contiguous()),
    "csr + csr": lambda g: g.csr + g.csr,
    "csr * 2": lambda g: g.csr * 2,
    "csr sin": lambda g: g.csr.sin(),
    "csr sum": lambda g: g.csr.sum(),
    "csr transposed": lambda g: g.csr.t(),
    "csr clone": lambda g: g.csr.clone(),
    "csr to double": lambda g: g.csr.double(),
    "csr gradient": lambda g: gradient(g.csr, g),
    "csr gradient of a maximum": lambda g: maximum_gradient(g.csr, g),
    "csr saved": lambda g: loaded(g.csr),
    "csr printed": lambda g: "sparse_csr" in repr(g.csr),
    "coo @ dense": lambda g: g.coo @ g.columns,
    "coo @ coo": lambda g: torch.sparse.mm(g.coo, g.coo),
    "coo bmm": lambda g: torch.bmm(torch.stack([g.coo, g.coo]), torch.stack([g.columns, g.columns])),
    "coo addmm": lambda g: torch.sparse.addmm(g.columns, g.coo, g.columns),
    "coo + coo": lambda g: g.coo + g.coo,
    "dense + coo": lambda g: g.dense + g.coo,
    "dense += coo": lambda g: g.dense.clone().add_(g.coo),
    "coo * coo": lambda g: g.coo * g.coo,
    "coo * dense": lambda g: g.coo * g.dense,
    "coo *= 3": lambda g: g.coo.mul_(3),
    "coo / 2": lambda g: g.coo / 2,
    "coo sum": lambda g: torch.sparse.sum(g.coo, 0),
    "coo softmax": lambda g: torch.sparse.softmax(g.coo, 1),
    "coo transposed": lambda g: g.coo.t(),
    "coo index_select": lambda g: g.coo.index_select(0, g.to([0, 2])),
    "coo row": lambda g: g.coo[1],
    "coo cat": lambda g: torch.cat([g.coo, g.coo]),
    "coo unsqueeze": lambda g: g.coo.unsqueeze(0),
    "coo sqrt": lambda g: g.coo.sqrt(),
    "coo norm": lambda g: g.coo.norm(),
    "coo zeros_like": lambda g: torch.zeros_like(g.coo),
    "coo clone": lambda g: g.coo.clone(),
    "coo to bool": lambda g: g.coo.bool(),
    "coo to csr": lambda g: g.coo.coalesce().to_sparse_csr(),
    "coo gradient": lambda g: gradient(g.coo, g),
    "coo saved": lambda g: loaded(g.coo),
    "dense masked by coo": lambda g: g.dense.sparse_mask(g.coo.coalesce()),
    "diagonals": lambda g: torch.sparse.spdiags(g.dense[:3], g.to([0, -1, 2]), (4, 4)),
}

QUANTIZED = {
    "per tensor": lambda g: g.quantized,
    "per channel": lambda g: torch.quantize_per_channel(g.dense, g.to([0.1] * 4), g.to([0] * 4), 0, torch.qint8),
    "dynamic range": lambda g: torch.quantize_per_tensor_dynamic(g.dense, torch.qint8, False),
    "moved": lambda g: torch.quantize_per_tensor(DENSE, 0.1, 3, torch.quint8).to(g.device),
    "integers": lambda g: g.quantized.int_repr(),
    "scale": lambda g: g.quantized.q_scale(),
    "relu": lambda g: g.quantized.relu(),
    "clone": lambda g: g.quantized.clone(),
    "deepcopy": lambda g: copy.deepcopy(g.quantized),
    "saved": lambda g: loaded(g.quantized),
    "viewed": lambda g: g.quantized.view(2, 8).t().contiguous(),
    "row": lambda g: g.quantized[1:3],
    "from floats": lambda g: g.quantized.clone().copy_(g.dense + 1),
    "added": lambda g: torch.ops.quantized.add(g.quantized, g.quantized, 0.2, 0),
    "fake per tensor": lambda g: torch.fake_quantize_per_tensor_affine(g.dense, 0.1, 0, 0, 255),
    "parameters": lambda g: torch.choose_qparams_optimized(g.dense.flatten(), 16, 200, 0.16, 8)[0],
}

SMALL = {
    "to float8_e4m3fn": lambda g: g.float8,
    "to float8_e5m2": lambda g: g.dense.to(torch.float8_e5m2),
    "to float8_e4m3fnuz": lambda g: g.dense.to(torch.float8_e4m3fnuz),
    "to float8_e8m0fnu": lambda g: g.dense.to(torch.float8_e8m0fnu),
    "from float8": lambda g: g.float8.float(),
    "float8 moved": lambda g: DENSE.to(torch.float8_e5m2).to(g.device),
    "float8 slices": lambda g: g.float8[1:, ::2],
    "float8 cat": lambda g: torch.cat([g.float8, g.float8]),
    "float8 copy_": lambda g: torch.zeros(4, 4, dtype=torch.float8_e5m2, device=g.device).copy_(g.dense),
    "float8 scaled product": lambda g: torch._scaled_mm(
        *(g.dense.repeat(4, 4).to(torch.float8_e4m3fn), g.dense.repeat(4, 4).to(torch.float8_e4m3fn).t()),
        *(g.to(1.0), g.to(1.0)),
        out_dtype=torch.float32,
    ),
    "complex32": lambda g: g.complex32.to(torch.complex64),
    "complex32 product": lambda g: (g.complex32 * g.complex32 + 1).to(torch.complex64),
    "complex32 parts": lambda g: g.complex32.real,
}

NESTED = {
    "made": lambda g: g.nested,
    "made on the device": lambda g: torch.nested.nested_tensor([COLUMNS, COLUMNS[:2]], device=g.device),
    "moved": lambda g: torch.nested.nested_tensor([COLUMNS, COLUMNS[:2]]).to(g.device),
    "added": lambda g: g.nested + g.nested,
    "scaled": lambda g: g.nested * 2,
    "linear": lambda g: F.linear(g.nested, g.columns),
    "product": lambda g: g.nested @ torch.nested.nested_tensor([g.columns.t(), g.columns.t()]),
    "softmax": lambda g: g.nested.softmax(-1),
    "layer norm": lambda g: F.layer_norm(g.nested, (2,), g.to([1.0, 2.0]), g.to([0.0, 1.0])),
    "unbound": lambda g: g.nested.unbind()[1],
    "transposed": lambda g: g.nested.transpose(1, 2).contiguous(),
    "gradient": lambda g: nested_gradient(g, torch.strided),
    "jagged": lambda g: g.jagged,
    "jagged moved": lambda g: torch.nested.nested_tensor([COLUMNS, COLUMNS[:2]], layout=torch.jagged).to(g.device),
    "jagged padded": lambda g: g.jagged.to_padded_tensor(0.0),
    "jagged linear": lambda g: F.linear(g.jagged, g.columns),
    "jagged sum": lambda g: g.jagged.sum(1),
    "jagged gradient": lambda g: nested_gradient(g, torch.jagged),
    "jagged attention": lambda g: jagged_attention(g),
    "jagged from offsets": lambda g: torch.nested.nested_tensor_from_jagged(g.columns, g.to([0, 1, 4])),
}


def jagged_attention(given: Given) -> torch.Tensor:
    heads = [given.dense[None].sin().permute(1, 0, 2), given.dense[None, :2].cos().permute(1, 0, 2)]
    q = torch.nested.nested_tensor(heads, layout=torch.jagged).transpose(1, 2)
    return F.scaled_dot_product_attention(q, q, q).transpose(1, 2).values()


@pytest.mark.parametrize("name", SPARSE)
def test_sparse(name):
    same(SPARSE[name])


@pytest.mark.parametrize("name", QUANTIZED)
def test_quantized(name):
    same(QUANTIZED[name])


@pytest.mark.parametrize("name", SMALL)
def test_small_floats_and_complex_numbers(name):
    same(SMALL[name])


@pytest.mark.parametrize("name", NESTED)
def test_nested(name):
    same(NESTED[name])


def test_cpu_brings_every_kind_back():
    given = Given(DEVICE)
    for tensor in (given.csr, given.coo, given.quantized, given.float8, given.complex32, given.nested, given.jagged):
        assert tensor.cpu().device.type == "cpu"


def test_quantized_views_share_their_memory():
    given = Given(DEVICE)
    given.quantized[0].copy_(given.dense[1])
    torch.testing.assert_close(given.quantized[0].dequantize().cpu(), DENSE[1])


def test_what_the_cpu_computes_is_counted():
    given = Given(DEVICE)
    torch.tiny.reset_stats()
    given.csr @ given.columns
    given.quantized.relu()
    assert {"aten::mm", "aten::relu"} <= torch.tiny.stats()["fallbacks"].keys()


def dynamic(device: str) -> torch.Tensor:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    return quantization.quantize_dynamic(network, {nn.Linear}).to(device)(DENSE.to(device))


def static(device: str) -> torch.Tensor:
    torch.manual_seed(0)
    network = nn.Sequential(quantization.QuantStub(), nn.Linear(4, 8), nn.ReLU(), quantization.DeQuantStub()).eval()
    network.qconfig = quantization.get_default_qconfig("fbgemm")
    quantization.prepare(network, inplace=True)
    network.to(device)(DENSE.to(device))
    return quantization.convert(network.cpu()).to(device)(DENSE.to(device))


@pytest.mark.parametrize("quantized", [dynamic, static])
def test_quantized_networks(quantized):
    result = quantized(DEVICE)
    assert result.device.type == "tiny"
    torch.testing.assert_close(result.cpu(), quantized("cpu"))


def test_sparse_gradients_of_bags():
    def gradient(device):
        torch.manual_seed(0)
        bags = nn.EmbeddingBag(10, 4, sparse=True, mode="sum").to(device)
        bags(torch.tensor([[1, 2], [3, 1]], device=device)).square().sum().backward()
        assert bags.weight.grad.is_sparse
        return bags.weight.grad.cpu().to_dense()

    torch.testing.assert_close(gradient(DEVICE), gradient("cpu"))


def test_tensors_of_onednn_are_refused():
    """tiny: tensors in oneDNN's own layout are the CPU's"""
    with pytest.raises(NotImplementedError, match="oneDNN's own layout are the CPU's"):
        DENSE.to(DEVICE).to_mkldnn()


@pytest.mark.parametrize(
    "refused", [lambda g: g.coo.reshape(2, 8), lambda g: g.float8 + g.float8, lambda g: F.layer_norm(g.nested, (2,))]
)
def test_what_the_cpu_refuses_is_refused_in_its_words(refused):
    with pytest.raises(Exception) as want:
        refused(Given("cpu"))
    with pytest.raises(type(want.value)) as got:
        refused(Given(DEVICE))
    assert str(got.value).splitlines()[0] == str(want.value).splitlines()[0]
