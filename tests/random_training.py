"""Random training loops: networks of a few layers with views, writes in place, masks and reductions, their gradients,
and an optimizer, over batches whose sizes differ. Losses, parameters, gradients and buffers are compared after each
step, in double precision: what is left of a difference is no rounding."""

from __future__ import annotations

import os
import random

import torch
import torch.utils.checkpoint

from tests.differential import DEVICE

STEPS = 7
WIDTHS = (4, 6, 8)


class Network:
    """Lines of a forward pass over activations h0, h1, ..., each (batch, width) or (batch, length, width)."""

    def __init__(self, seed: int):
        self.pick = random.Random(seed)
        self.length = self.pick.choice((3, 5, 6))
        self.parameters: list[str] = []
        self.buffers: list[str] = []
        self.widths: dict[str, int] = {}
        self.sequences: dict[str, int] = {}
        self.forward: list[str] = []
        self.width = self.pick.choice(WIDTHS)
        for name, sequence in (("x", False), ("s", True)):
            wide = self.pick.choice(WIDTHS)
            self.keep(f"F.linear({name}, {self.parameter(wide, self.width)})", wide, sequence)
        for _ in range(self.pick.randint(3, 9)):
            (self.of_sequences if self.pick.random() < 0.5 else self.of_rows)()

    def keep(self, text: str, width: int, sequence: bool = False) -> str:
        name = f"h{len(self.widths) + len(self.sequences)}"
        self.forward.append(f"{name} = {text}")
        (self.sequences if sequence else self.widths)[name] = width
        return name

    def parameter(self, *shape: int) -> str:
        name = f"p{len(self.parameters)}"
        self.parameters.append(f"{name} = made({shape}, {len(self.parameters) + 1}).requires_grad_()")
        return name

    def one_of(self, names: dict[str, int], width: int | None = None) -> str:
        """An activation, one of the last three as a rule."""
        fitting = [n for n, w in names.items() if width in (None, w)]
        return self.pick.choice(fitting[-3:] if self.pick.random() < 0.8 else fitting)

    def of_rows(self) -> None:
        """A line from (batch, width) to (batch, width)."""
        h, pick = self.one_of(self.widths), self.pick
        w, k = self.widths[h], pick.randint(1, 3)
        other, wide = self.one_of(self.widths, w), pick.choice(WIDTHS)
        kind = pick.choice(("linear", "same", "same", "write", "join", "norm", "whole"))
        if kind == "linear":
            self.keep(f"F.linear({h}, {self.parameter(wide, w)}, {self.parameter(wide)})", wide)
        elif kind == "same":
            same = (
                f"torch.tanh({h})", f"F.gelu({h})", f"F.silu({h}) * {other}", f"{h}.softmax(1) + {other}",
                f"torch.where({h} > {other}, {h}, {other} * 0.5)", f"{h}.masked_fill({h} > 0.3, 0.1)",
                f"{h} / (1 + {h}.norm(dim=1, keepdim=True))", f"{h}.cumsum(1) * 0.2", f"{h}.roll({k}, 1) - {h}",
                f"{h}.flip(1).sin()", f"{h}[:, torch.randperm({w}, generator=draw)]", f"{h}.sort(1).values",
                f"{h} - {h}.logsumexp(1, keepdim=True)", f"{h} * {self.pick.choice(('', '-'))}torch.sigmoid({other})",
                f"{h}.clamp(-0.5, 0.8)", f"torch.lerp({h}, {other}, 0.3)", f"{h}.gather(1, ({other} > 0).long())",
                f"{h} + {h}.diagonal().sum()", f"{h}.abs().add(0.1).sqrt()", f"{h}.expand(2, -1, -1).mean(0)",
                f"torch.addcmul({h}, {other}, {other}, value=0.2)", f"{h}.pow(2).exp().reciprocal()",
                f"F.pad({h}, ({k}, 0))[:, :{w}]", f"{h}.tril({k - 2})", f"checkpoint(torch.tanh, {h})",
                f"F.dropout({h}, 0.5, False)", f"F.pad({h}.unfold(1, 2, 1).amax(-1), (0, 1))", f"{h}.mT.cos().mT",
            )  # fmt: skip
            self.keep(pick.choice(same), w)
        elif kind == "write":
            name = self.keep(f"{h}.clone()", w)
            writes = (
                f"{name}[:, {k}:] *= 2", f"{name}[:, ::2] += {other}[:, ::2]", f"{name}[0] = {other}[-1]",
                f"{name}[:, {k % w}] = {other}.sum(1) * 0.1", f"{name}.diagonal().mul_(0.5)", f"{name}.tanh_()",
                f"{name}[{name} > 0.2] = 0.1", f"{name}.t()[{k % w}].add_({other}[:, 0])", f"{name}[:, :2].zero_()",
                f"for i in range({w}): {name}[:, i] = {name}[:, i - 1] * 0.5 + {other}[:, i]",
                f"{name}.index_add_(1, torch.tensor([0, {w - 1}, 0], device=device), {other}[:, :3])",
                f"{name}.masked_fill_({other}.detach() > 0, 0.2)",
                f"v = {name}.view(-1); v[::3] += 0.1; {name}.mul_(0.9)",
                f"{name}.scatter_(1, torch.zeros(batch, 1, dtype=torch.long, device=device), 0.3)",
            )  # fmt: skip
            self.forward.append(pick.choice(writes))
        elif kind == "join":
            parts = pick.choice((f"torch.cat([{h}[:, :2], {other}[:, 2:]], 1)", f"torch.stack([{h}, {other}]).sum(0)"))
            self.keep(parts, w)
        elif kind == "norm":
            weight, bias = self.parameter(w), self.parameter(w)
            if pick.random() < 0.5:
                self.keep(f"F.layer_norm({h}, ({w},), {weight}, {bias})", w)
            else:
                mean, deviation = f"b{len(self.buffers)}", f"b{len(self.buffers) + 1}"
                self.buffers += [f"{mean} = made(({w},), 91)", f"{deviation} = made(({w},), 92).abs()"]
                self.keep(f"F.batch_norm({h}, {mean}, {deviation}, {weight}, {bias}, True)", w)
        else:
            whole = (f"{h} @ ({h}.t() @ {other}) * 0.05", f"{h} - {h}.mean(0)", f"{h} * {h}.sum(0).tanh()",
                     f"{h}.softmax(0)", f"({h} @ {other}.t()).tril().softmax(1) @ {h}", f"{h}.cumsum(0) * 0.1",
                     f"{h} + F.normalize({h}, dim=0)", f"{h} - {other}.amax(0)", f"{h}.std(0) * {other}")  # fmt: skip
            self.keep(pick.choice(whole), w)

    def of_sequences(self) -> None:
        """A line from (batch, length, width), to the same or to (batch, width)."""
        s, pick = self.one_of(self.sequences), self.pick
        w, k = self.sequences[s], pick.randint(1, 2)
        kind = pick.choice(("convolution", "attention", "pool", "same", "look up", "rows"))
        if kind == "convolution":
            wide = pick.choice(WIDTHS)
            convolved = f"F.conv1d({s}.transpose(1, 2), {self.parameter(wide, w, 3)}, padding=1).transpose(1, 2)"
            self.keep(convolved, wide, sequence=True)
        elif kind == "attention":
            heads = f"{s}.unflatten(-1, (2, {w // 2})).transpose(1, 2)"
            causal = pick.choice((True, False))
            attended = f"F.scaled_dot_product_attention({heads}, {heads}, {heads}.tanh(), is_causal={causal})"
            self.keep(f"{attended}.transpose(1, 2).flatten(2)", w, sequence=True)
        elif kind == "pool":
            self.keep(pick.choice((f"{s}.mean(1)", f"{s}.amax(1)", f"{s}[:, -1]", f"{s}[:, {k}] * {s}[:, 0]",
                                   f"{s}.sum(1).tanh()", f"F.max_pool1d({s}.transpose(1, 2), 2).mean(2)",
                                   f"torch.einsum('blw,bl->bw', {s}, {s}.mean(2))")), w)  # fmt: skip
        elif kind == "same":
            other = self.one_of(self.sequences, w)
            self.keep(pick.choice((f"torch.cat([{s}[:, {k}:], {other}[:, :{k}]], 1)", f"{s}.softmax(1) + {other}",
                                   f"F.gelu({s})", f"{s} - {s}.mean((1, 2), keepdim=True)", f"{s}.flip(1) * {other}",
                                   f"{s}.cumsum(1) * 0.2", f"F.pad({s}, (0, 0, {k}, 0))[:, :{self.length}]")),
                      w, sequence=True)  # fmt: skip
        elif kind == "look up":
            places = f"(s[:, :, 0] > 0).long() * {k} + {k - 1}"
            self.keep(f"{s} + F.embedding({places}, {self.parameter(5, w)})", w, sequence=True)
        else:
            rows = self.one_of(self.widths)
            added = f"F.linear({rows}, {self.parameter(w, self.widths[rows])})[:, None]"
            self.keep(f"{s} + {added}", w, sequence=True)


# PyTorch's loops over all parameters at once, which accelerators have by default: SGD's leaves other gradients behind.
# With the usual `eps` what is left of a gradient that is zero would be a step.
OPTIMIZERS = (
    "SGD(parameters, 0.05, momentum=0.9, foreach=True)",
    "SGD(parameters, 0.05, momentum=0.8, nesterov=True, foreach=True)",
    "Adam(parameters, 0.01, eps=1e-3, foreach=True)",
    "AdamW(parameters, 0.01, eps=1e-3, amsgrad=True, foreach=True)",
    "RMSprop(parameters, 0.01, eps=1e-3, foreach=True)",
    "Adagrad(parameters, 0.05, eps=1e-3, foreach=True)",
)


def random_lines(seed: int) -> list[str]:
    """A program as text: what is made once, then `step(batch)` as a function."""
    network = Network(seed)
    pick, names = network.pick, [*network.widths, *network.sequences]
    last = pick.sample(names, min(len(names), 3)) + names[-1:]
    loss = " + ".join(f"{name}.{pick.choice(('square().mean()', 'sum() * 0.01', 'tanh().mean()'))}" for name in last)
    lines = [*network.parameters, *network.buffers]
    parameters = ", ".join(line.split(" = ")[0] for line in network.parameters)
    lines += [f"parameters = [{parameters}]", f"optimizer = torch.optim.{pick.choice(OPTIMIZERS)}", "losses = []"]
    body = [
        f"x = made((batch, {network.width}), 50 + at)",
        f"s = made((batch, {network.length}, {network.width}), 60 + at)",
    ]
    body += network.forward
    body += [f"loss = {loss}", "optimizer.zero_grad()" if pick.random() < 0.7 else "optimizer.zero_grad(False)"]
    body.append("loss.backward()")
    if pick.random() < 0.3:
        body.append("torch.nn.utils.clip_grad_norm_(parameters, 0.5)")
    body += ["optimizer.step()", pick.choice(("losses.append(loss.item())", "losses.append(loss.detach())"))]
    return [*lines, "def step(batch, at):", *(f"    {line}" for line in body)]


def run(lines: list[str], batches: list[int], device: str) -> list[dict[str, torch.Tensor]]:
    """What there is after each step."""

    def made(shape: tuple[int, ...], seed: int) -> torch.Tensor:
        return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(device)

    def checkpoint(function, x):
        return torch.utils.checkpoint.checkpoint(function, x, use_reentrant=False)

    names: dict = {"torch": torch, "F": torch.nn.functional, "made": made, "device": device, "checkpoint": checkpoint}
    names["draw"] = torch.Generator()
    exec("\n".join(lines), names)
    after = []
    for at, batch in enumerate(batches):
        names["draw"].manual_seed(3)
        names["step"](batch, at)
        shown = {f"p{i}": p.detach().cpu().clone() for i, p in enumerate(names["parameters"])}
        shown |= {f"p{i}.grad": p.grad.cpu().clone() for i, p in enumerate(names["parameters"]) if p.grad is not None}
        shown |= {n: t.cpu().clone() for n, t in names.items() if n.startswith("b") and isinstance(t, torch.Tensor)}
        after.append(shown | {"loss": torch.tensor([float(loss) for loss in names["losses"]])})
    return after


def batches_of(seed: int) -> list[int]:
    """Sizes of batches as programs have them: one that repeats, and others between."""
    pick = random.Random(seed)
    usual = pick.randint(2, 12)
    return [usual, usual, *(pick.choice((usual, pick.randint(2, 20))) for _ in range(STEPS - 3)), usual]


def check(lines: list[str], seed: int) -> None:
    """Raises AssertionError where the devices differ after any step."""
    batches = batches_of(seed)
    with torch.tiny.compile_mode(os.environ["TORCH_TINY_COMPILE"]):
        given = run(lines, batches, DEVICE)
    for at, (want, got) in enumerate(zip(run(lines, batches, "cpu"), given, strict=True)):
        assert want.keys() == got.keys(), f"step {at}: {sorted(want)} and {sorted(got)}"
        for name, tensor in want.items():
            where = f"{name} after step {at}, batches {batches}"
            torch.testing.assert_close(
                got[name], tensor, rtol=1e-7, atol=1e-9, equal_nan=True, msg=lambda m, w=where: f"{w}: {m}"
            )
