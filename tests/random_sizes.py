"""Random programs that are written for any size, run at one size after another: what the first sizes compile, the later
ones must get right. Every tensor that is left is compared, and numbers are exact, as in tests/grammar.py."""

from __future__ import annotations

import random

import torch

SIZES = 7


def random_lines(seed: int) -> list[str]:
    """Statements over tensors t0, t1, ... of shape (rows, n), (n,) or (n, rows), n itself, and a place k in it."""
    pick = random.Random(seed)
    rows = pick.choice((2, 3, 4, 8))
    lines = [f"t0 = filled(({rows}, n), 1)", f"t1 = filled((n, {rows}), 2)", "t2 = filled((n,), 3)"]
    shapes = {"t0": "rn", "t1": "nr", "t2": "n"}

    def of(shape: str) -> str:
        return pick.choice([name for name, s in shapes.items() if s == shape])

    def like(shape: str) -> str:
        """An expression of this shape."""
        k = pick.randint(1, 3)
        name = of(shape)
        common = [f"({name} + {k})", f"({name} * 2 - {of(shape)})", f"torch.maximum({name}, {of(shape)})", f"-{name}"]
        special = {
            "rn": [
                f"{of('nr')}.t()", f"({name} + {of('n')})", f"{name}.flip(1)", f"{name}.roll({k}, 1)",
                f"torch.cat([{name}[:, {k}:], {of('rn')}[:, :{k}]], 1)", f"{of('nr')}.reshape({rows}, n)",
                f"torch.nn.functional.pad({name}[:, {k}:], (0, {k}))", f"{name}.tril({k})",
                f"({name} - {name}.amax(1, keepdim=True))", f"torch.where({name} > {k}, {name}, {of('n')})",
                f"({name} + torch.arange(n, device=device) % 5)", f"{name}.clone()",
                f"torch.cat([{name}[:, k:], {of('rn')}[:, :k]], 1)", f"(({name} % 7).cumsum(1) % 9)",
                f"{name}.sort(1).values", f"({name}.argsort(dim=1, stable=True).float() % 5)",
            ],
            "nr": [f"{of('rn')}.t()", f"{of('rn')}.view(-1).view(n, {rows})", f"({name} + {of('n')}[:, None])"],
            "n": [
                f"{of('rn')}.sum(0)", f"{of('nr')}.amax(1)", f"{of('rn')}[{pick.randrange(rows)}]",
                f"{of('nr')}[:, {pick.randrange(rows)}]", f"{name}.flip(0)", f"({name} % {k + 1})",
                f"{of('rn')}.view(-1)[{k}:n + {k}]", f"{of('rn')}.view(-1)[::{rows}]",
                f"torch.cat([{name}[k:], {of('n')}[:k]])", f"(({name} % 5).cumsum(0) % 8)", f"{name}.sort().values",
            ],
        }[shape]  # fmt: skip
        return pick.choice(common + special)

    for i in range(3, pick.randint(6, 16)):
        kind = pick.randint(0, 5)
        shape = pick.choice(("rn", "rn", "nr", "n"))
        name, k = of(shape), pick.randint(1, 3)
        if kind <= 2:
            lines.append(f"t{i} = {like(shape)}")
            shapes[f"t{i}"] = shape
        elif kind == 3:
            lines.append(f"{name} = {name}.contiguous(); {name}.add_({like(shape)}.clone())")
        elif shape == "n":
            lines.append(
                pick.choice(
                    [
                        f"{name}[{k}:].mul_(2)", f"{name}[-{k}] = {k}", f"{name}[::{k + 1}] = 7", f"{name}[k:] += {k}",
                        f"{name}[:k] = {name}[k].clone()", f"s{i} = {name}[{name} > {k}] * 2",
                        f"for i in range(n): {name}[i] = i % {k + 1}",
                        f"for i in range(k, n): {name}[i] = {of('nr')}[i, 0] * 2 + i",
                    ]
                )
            )  # fmt: skip
        else:
            at = pick.choice(
                [
                    f":, {k}:",
                    f":, :-{k}",
                    f"-1, {k}:-{k}",
                    f"::2, ::{k + 1}",
                    f":, {k}",
                    ":, -1",
                    "0",
                    ":, k:",
                    "-1, :k",
                ]
            )
            at = at if shape == "rn" else "0" if at == "0" else ", ".join(reversed(at.split(", ")))
            place = pick.choice([8, 16, 24, 60, 64, 96])
            write = pick.choice([f"{name}[{at}] = {k}", f"{name}[{at}] *= 2", f"{name}.view(-1)[{place}] = {-k}"])
            write = write if ".view" not in write else f"{name} = {name}.contiguous(); {write}"
            lines.append(pick.choice([write, f"{name}.diagonal({k - 2}).add_(1)"]))
        if pick.random() < 0.15:
            lines.append(f"{of('n')}.sum().item()")
    return lines


def run(lines: list[str], n: int, k: int, device: str) -> dict[str, torch.Tensor]:
    def filled(shape: tuple[int, ...], seed: int) -> torch.Tensor:
        numbers = torch.randint(-8, 9, shape, generator=torch.Generator().manual_seed(seed + n))
        return numbers.float().to(device)

    names: dict = {"torch": torch, "n": n, "k": k, "device": device, "filled": filled}
    for line in lines:
        exec(line, names)
    return {name: t for name, t in names.items() if isinstance(t, torch.Tensor)}


def check(lines: list[str], seed: int) -> None:
    """Raises AssertionError where the devices differ at any size."""
    pick = random.Random(seed)
    for n in [pick.randint(20, 70) for _ in range(SIZES)] + [pick.choice((12, 16, 32, 64, 96, 128))]:
        try:
            k = pick.randint(2, n - 2)
            expected = run(lines, n, k, "cpu")
        except (RuntimeError, IndexError):  # a write to what is expanded, a place that this size does not have
            continue
        given = run(lines, n, k, "tiny")
        for name, tensor in expected.items():
            where = f"{name} at n = {n}, k = {k}"
            torch.testing.assert_close(given[name].cpu(), tensor, rtol=0, atol=0, msg=lambda m, w=where: f"{w}: {m}")
