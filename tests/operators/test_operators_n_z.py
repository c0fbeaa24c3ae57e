"""What went wrong once among the operators from n to z: each case as a user meets it, against the CPU."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint

from torch_tinygrad.conformance.compare import FORWARD


def both(function, **tolerance):
    """A function of the device on both; results compared, and the device's returned."""
    want, got = function("cpu"), function("tiny")
    on_cpu = torch.utils._pytree.tree_map(lambda t: t.cpu(), got)
    torch.testing.assert_close(on_cpu, want, check_stride=True, **tolerance)
    return got


def sequence(*shape: int, device: str) -> torch.Tensor:
    return torch.linspace(-1, 1, steps=int(torch.Size(shape).numel()), device="cpu").reshape(shape).to(device)


def test_batch_norm_keeps_no_statistics_outside_of_training():
    def run(device):
        x, state = sequence(2, 3, 4, device=device), sequence(3, device=device).abs() + 1
        return torch.native_batch_norm(x, None, None, state, state, False, 0.1, 1e-5)[0]

    both(run)


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_into_given_results_updates_running_statistics(training):
    def run(device):
        x, mean, var = sequence(2, 3, 4, device=device), torch.zeros(3, device=device), torch.ones(3, device=device)
        out = [torch.empty(0, device=device) for _ in range(3)]
        torch.ops.aten.native_batch_norm.out(
            x, None, None, mean, var, training, 0.1, 1e-5, out=out[0], save_mean=out[1], save_invstd=out[2]
        )
        return out[0], mean, var

    both(run)


def test_pool_whose_values_are_forgotten_still_has_a_gradient():
    def run(device):
        x = sequence(1, 2, 6, device=device).requires_grad_()
        out = F.adaptive_max_pool1d(x, 3)
        return torch.autograd.grad(out, x, torch.ones(1, 2, 3, device=device))[0]

    both(run)


def test_loss_without_reduction_keeps_no_total_weight():
    both(
        lambda d: F.cross_entropy(
            sequence(2, 3, 4, 4, device=d), torch.ones(2, 4, 4, dtype=torch.int64, device=d), reduction="none"
        )
    )


def test_feature_dropout_drops_whole_channels():
    torch.manual_seed(0)
    out = F.dropout2d(torch.ones(8, 16, 4, 4, device="tiny"), 0.5, training=True).cpu()
    assert set(out.unique().tolist()) == {0.0, 2.0}
    assert torch.equal(out, out[..., :1, :1].expand_as(out))


def test_in_place_forms_under_other_names():
    def run(device):
        x, y = torch.arange(1, 5, device=device), torch.tensor([1, 2, 1, 2], device=device)
        x <<= y
        x.pow_(y).floor_divide_(torch.tensor(3, device=device))
        x >>= y
        return x

    both(run)
    assert torch.ones(100, device="tiny").bernoulli_(0.0).sum().item() == 0


def test_segments_are_checked_by_their_lengths():
    def run(device):
        return torch.segment_reduce(
            sequence(6, device=device), "sum", lengths=torch.tensor([1, 2, 3], device=device), unsafe=False
        )

    both(run)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpoint_recomputes_the_same_dropout_mask(use_reentrant):
    masks = []

    def forward(x):
        y = F.dropout(x, 0.5, training=True)
        masks.append(y.detach() != 0)
        return y * y

    x = torch.ones(4, 8, device="tiny", requires_grad=True)
    torch.utils.checkpoint.checkpoint(forward, x, use_reentrant=use_reentrant).sum().backward()
    assert len(masks) == 2
    assert torch.equal(masks[0].cpu(), masks[1].cpu())
    assert torch.equal((x.grad != 0).cpu(), masks[0].cpu())


def test_transformer_layer_has_gradients():
    def run(device):
        torch.manual_seed(0)
        layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).to(device)
        x = sequence(2, 5, 8, device=device).requires_grad_()
        layer(x).square().sum().backward()
        return x.grad, layer.self_attn.in_proj_weight.grad

    both(run)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.uint8])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_constants_without_an_integer_convert_as_on_the_cpu(value, dtype):
    both(lambda d: torch.where(torch.tensor([True, False], device=d), 1.0, torch.full((2,), value, device=d)).to(dtype))


def test_nonzero_lies_in_memory_as_on_the_cpu():
    def run(device):
        x = sequence(3, 4, device=device) > 0
        return x.nonzero(), torch.nonzero(x, out=torch.empty(0, dtype=torch.int64, device=device))

    both(run)


def test_trigamma_near_a_far_pole_rounds_as_on_the_cpu():
    rtol, atol = FORWARD[torch.float32]
    both(lambda d: torch.polygamma(1, torch.tensor([-8.95, -0.97, 0.3, 2.0], device=d)), rtol=rtol, atol=atol)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "name",
    [
        "bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "modified_bessel_k0", "modified_bessel_k1",
        "scaled_modified_bessel_k0", "scaled_modified_bessel_k1", "spherical_bessel_j0",
    ],
)  # fmt: skip
def test_bessel_functions_near_zero_at_their_borders_and_far(name, dtype):
    rtol, atol = FORWARD[dtype]
    inf, nan = float("inf"), float("nan")
    points = [
        0.0,
        -0.0,
        1e-30,
        0.3,
        1.999,
        2.0,
        2.001,
        4.999,
        5.0,
        5.001,
        40.0,
        700.0,
        -0.3,
        -3.0,
        -9.0,
        inf,
        -inf,
        nan,
    ]
    function = getattr(torch.special, name)
    both(lambda d: function(torch.tensor(points, dtype=dtype, device=d)), rtol=rtol, atol=atol, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16])
def test_narrow_integers_wrap_before_they_are_used(dtype):
    def run(device):
        a, b = (torch.tensor(v, device=device).to(dtype) for v in ([5, 100, 127], [9, 3, 127]))
        return (a - b).float(), (-a).clamp_min(0), (a - b) < 3, (a * b).float(), (a + b + b).double(), (a * 3 - b) // 2

    both(run)
