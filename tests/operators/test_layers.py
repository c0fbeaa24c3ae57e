"""Layers, where one once differed from the CPU: statistics, losses, dropout, gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint

from tests.differential import both


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
