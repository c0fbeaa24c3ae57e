"""Gradients of programs that mix views, in-place writes, hooks and custom functions are the CPU's."""
# ruff: noqa: F841 - the differential helper compares the local variables of a program

from __future__ import annotations

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from tests.differential import DEVICE, both, data, normal


def weight(*shape, device, seed=0):
    return normal(*shape, seed=seed, device=device).requires_grad_()


# name -> function of a 4 x 6 leaf `w` and its device, returning what is summed and differentiated.
def through_slices(w, device):
    y = w * 2
    y[1:3] = w[0:2] ** 2
    y[:, ::2].mul_(3)
    return y


def through_rows(w, device):
    out = torch.zeros(4, 6, device=device)
    for i in range(4):
        out[i] = w[3 - i] * (i + 1)
    return out * w


def through_elements(w, device):
    out = torch.zeros(4, device=device)
    for i in range(4):
        out[i] = w[i, i] ** 2 + out[i - 1]
    return out


def through_transpose(w, device):
    y = w.exp() * 2
    y.t()[1].add_(w[:, 0])
    return y.view(-1) * y.clone().flatten()


def through_mask(w, device):
    y = w * 1
    y[w > 0] = 0
    y.masked_fill_(w < -1, 2.0)
    return y * w


def through_index_put(w, device):
    y = w.clone()
    y[torch.tensor([0, 2], device=device)] = w[1] * 3
    y.index_put_((torch.tensor([1, 1], device=device),), w[:2].sin(), accumulate=True)
    return y


def through_scatter(w, device):
    index = torch.tensor([[0, 1, 2], [2, 0, 1]], device=device)
    return w.clone().scatter_add_(1, index, w[:2, :3] * 2).scatter_(0, index, w[2:, 3:]) * w


def through_index_ops(w, device):
    index = torch.tensor([3, 0], device=device)
    y = w.index_copy(0, index, w[:2] * 2).index_add(1, index, w[:, :2])
    return y.index_fill_(0, torch.tensor([1], device=device), 0) * w


def through_diagonal(w, device):
    y = w.clone()
    y.diagonal().mul_(w.diagonal())
    y.diagonal(1).zero_()
    return y * y


def through_as_strided(w, device):
    y = w * 1
    y.as_strided((3, 2), (7, 2), 1).mul_(2)
    windows = w.reshape(-1).as_strided((10, 4), (2, 1))
    return y.sum(0)[:4] * windows


def through_expand(w, device):
    y = w[:, :1].expand(4, 6) * w
    y += w[0]
    return y


def through_unfold(w, device):
    return w.unfold(1, 3, 1) * w[:, :4].unsqueeze(-1)


def through_split(w, device):
    a, b, c = w.split([1, 2, 3], dim=1)
    out = torch.zeros(4, 6, device=device)
    out[:, 3:4] = a
    out[:, 4:] = b * 2
    out[:, :3].copy_(c)
    return out * out


def through_copy(w, device):
    y = torch.zeros(6, 4, device=device)
    y.t().copy_(w)
    y[0] = y[1].clone() * y[2].clone()
    return y


def through_detached_base(w, device):
    base = torch.ones(4, 6, device=device)
    view = base[1:3]
    view.mul_(w[:2])
    base.t()[0].add_(w[:, 3])
    return base * base


def through_out_of_place_chain(w, device):
    return w.view(2, 12).permute(1, 0).reshape(3, 8).narrow(1, 2, 4).squeeze().unsqueeze(1).flatten()


PROGRAMS = {name.removeprefix("through_"): f for name, f in globals().items() if name.startswith("through_")}


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradient_through(name):
    def program(device):
        w = weight(4, 6, device=device)
        y = PROGRAMS[name](w, device)
        (y * normal(*y.shape, seed=5, device=device)).sum().backward()
        yield

    both(program, schedules=("lazy", "random"))


@pytest.mark.parametrize("name", PROGRAMS)
def test_second_gradient_through(name):
    def program(device):
        w = weight(4, 6, device=device)
        y = (PROGRAMS[name](w, device) ** 2).sum()
        (first,) = torch.autograd.grad(y, w, create_graph=True)
        (second,) = torch.autograd.grad((first**2).sum(), w, allow_unused=True)
        yield

    both(program, schedules=("lazy",), rtol=1e-4, atol=1e-4)


def test_gradients_accumulate_over_backwards_with_retain_graph():
    def program(device):
        w = weight(3, 3, device=device)
        y = w.t().sin()
        y[0].mul_(2)
        loss = y.sum()
        loss.backward(retain_graph=True)
        yield
        loss.backward(retain_graph=True)
        yield
        loss.backward()
        w.grad[1].zero_()
        yield

    both(program)


def test_hooks_see_and_change_gradients_of_views():
    def program(device):
        seen = []
        w = weight(4, 4, device=device)
        v = w[1:3]
        v.register_hook(lambda g: seen.append(g.clone()))
        u = v * 2
        u.register_hook(lambda g: g * 10)
        w.register_hook(lambda g: g.t())
        (u * normal(2, 4, seed=2, device=device)).sum().backward()
        yield

    both(program)


def halve_gradient(parameter):
    parameter.grad.mul_(0.5)


def test_hook_that_writes_the_gradient_in_place():
    def program(device):
        w = weight(4, device=device)
        w.register_post_accumulate_grad_hook(halve_gradient)
        (w**3).sum().backward()
        yield

    both(program)


def test_in_place_on_views_of_leaves_without_grad():
    def program(device):
        w = weight(4, 4, device=device)
        (w**2).sum().backward()
        with torch.no_grad():
            w[0].zero_()
            w.t()[1].add_(1)
            w.view(-1)[3::5] = 7
            w -= 0.1 * w.grad
        yield
        w.grad = None
        (w**3)[1:].sum().backward()
        yield

    both(program)


def test_views_made_without_grad_and_written_with_grad():
    def program(device):
        a = torch.zeros(4, 4, device=device)
        with torch.no_grad():
            v = a[1:3].detach()
        w = weight(4, device=device)
        a[2] = w * 2
        a.sum().backward()
        yield

    both(program)


class AddInPlace(torch.autograd.Function):
    """Adds into its argument and says so."""

    @staticmethod
    def forward(ctx, target, source):
        target.add_(source)
        ctx.mark_dirty(target)
        return target

    @staticmethod
    def backward(ctx, gradient):
        return gradient, gradient * 2


class SquareIntoBuffer(torch.autograd.Function):
    """Writes its result into part of a buffer it made, and its gradient in place."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        buffer = x.new_zeros(2, *x.shape)
        buffer[1].copy_(x).mul_(x)
        return buffer[1]

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        result = torch.empty_like(x)
        result[:] = x
        result *= 2
        return result.mul_(gradient)


def test_custom_function_that_writes_its_argument():
    def program(device):
        w, x = weight(3, 4, device=device), weight(3, 4, seed=1, device=device)
        y = w * 3
        z = AddInPlace.apply(y, x)
        (z * z).sum().backward()
        yield

    both(program)


def test_custom_function_that_writes_a_view_of_its_argument():
    def program(device):
        w, x = weight(3, 4, device=device), weight(4, seed=1, device=device)
        y = w * 3
        AddInPlace.apply(y[1], x)
        (y * y).sum().backward()
        yield

    both(program)


def test_custom_function_with_buffers_of_its_own():
    def program(device):
        w = weight(3, 4, device=device)
        y = SquareIntoBuffer.apply(w) * w
        y.sum().backward()
        yield

    both(program)


def test_checkpointed_function_with_in_place_writes():
    def block(x):
        y = x.tanh()
        y[0] = y[1] * 2
        return y.t().contiguous().view(x.shape)

    def program(device):
        w = weight(4, 4, device=device)
        y = checkpoint(block, w, use_reentrant=False)
        (y * y).sum().backward()
        yield

    both(program)


def test_gradient_of_a_gradient_through_an_in_place_product():
    def program(device):
        w = weight(5, device=device)
        y = w.clone()
        y.mul_(w).mul_(w)
        (g,) = torch.autograd.grad(y.sum(), w, create_graph=True)
        (h,) = torch.autograd.grad(g.sum(), w)
        yield

    both(program)


def _scaled_rows(x):
    y = x * 2
    y[1:].mul_(x[:-1])
    return y.t()


def _steps_and_diagonal(x):
    y = x.clone()
    y[::2, 1:] = x[::2, :-1] * x[::2, 1:]
    y.diagonal().add_(x.select(0, 1)[:2].exp())
    return y.view(-1).unfold(0, 3, 2)


def _overlapping_reads(x):
    return (x.as_strided((4, 2), (1, 2)) * x.view(-1)[1:5].unsqueeze(1)).sum(0)


def _masks_and_indices(x):
    y = x.sin()
    y.masked_fill_(x.detach() > 0.5, 0.25)
    y = y.index_add(1, torch.tensor([1, 1], device=x.device), x[:, :2])
    return y.index_put((torch.tensor([0, 2], device=x.device),), x[1], accumulate=True)


def _repeated_writes(x):
    y = torch.zeros(4, dtype=x.dtype, device=x.device)
    for i in range(3):
        y[i + 1] = y[i] * 0.5 + x[i, 0] * x[i, 1]
    return y


@pytest.mark.parametrize(
    "function", [_scaled_rows, _steps_and_diagonal, _overlapping_reads, _masks_and_indices, _repeated_writes]
)
def test_gradcheck_of_views_and_writes_in_double_precision(function):
    x = normal(3, 2, dtype=torch.float64, device=DEVICE).requires_grad_()
    assert torch.autograd.gradcheck(function, (x,))


def test_forward_mode_derivative_through_views():
    def program(device):
        x, t = normal(3, 4, device=device), normal(3, 4, seed=1, device=device)
        value, tangent = torch.func.jvp(lambda a: (a.t()[1:] ** 2).sum(0), (x,), (t,))
        yield

    both(program, schedules=("lazy",))


def test_vmap_over_views_and_assignments():
    def program(device):
        x = data(3, 4, device=device)
        rows = torch.vmap(lambda r: r.flip(0).clone().view(2, 2).t() + r[0])(x)
        gradients = torch.vmap(torch.func.grad(lambda r: (r[1:] * r[:-1]).sum()))(x)
        yield

    both(program, schedules=("lazy",))
