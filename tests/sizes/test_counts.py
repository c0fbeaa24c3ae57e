"""How many compiles programs take whose sizes change all the time. However long they run: a handful."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from .counting import Transformer, compiles, same_losses, values


def seeded(n: int) -> torch.Generator:
    return torch.Generator().manual_seed(n)


def count_of(run) -> int:
    """Compiles of a program whose results are the CPU's."""
    (count,) = compiles(lambda _, device: run(device), [0])
    return count


def test_a_transformer_trains_with_sixty_lengths():
    def batch(n):
        tokens = torch.randint(0, 50, (4, n), generator=seeded(n))
        return tokens, tokens.roll(1, 1)

    same_losses(Transformer, batch, [20, 33, *((i * 37) % 61 + 8 for i in range(60))], most=3)


def images(n):
    return torch.randn(n, 1, 8, 8, generator=seeded(n)), torch.randint(0, 5, (n,), generator=seeded(n))


def network():
    blocks = [nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    return nn.Sequential(*blocks, nn.Linear(8 * 16, 5))


BATCHES = [16, 24, 13, 32, 9, 20, 7, 11, 12, 40, 17, 50, 48, 64, 5, 33]


def test_a_network_with_batch_norm_trains_with_sixteen_batches():
    same_losses(network, images, BATCHES, most=3)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 5)

    def forward(self, x):
        return self.head(self.layer(x)[0])


def test_an_lstm_trains_with_sixteen_batches():
    def batch(n):
        return torch.randn(n, 4, 8, generator=seeded(n)), torch.randint(0, 5, (n, 4), generator=seeded(n))

    same_losses(Recurrent, batch, BATCHES, most=3)


def test_a_last_smaller_batch_is_one_more_compile_once():
    same_losses(network, images, [20, *([32] * 3 + [20]) * 2], most=1, before=[32] * 4)


def test_a_cache_that_grows_by_cat():
    def run(device):
        weight, cache, out = values(8, 8, device=device), values(2, 5, 8, device=device), []
        query = cache[:, -1:] @ weight
        for _ in range(128):
            cache = torch.cat([cache, query / query.norm()], 1)
            query = (query @ cache.transpose(1, 2)).softmax(-1) @ cache @ weight
            out.append(query.cpu())
        return out

    assert count_of(run) <= 4


def test_a_cache_that_is_filled_in_place():
    def run(device):
        weight, query, out = values(8, 8, device=device), values(2, 1, 8, device=device), []
        cache = torch.zeros(2, 160, 8).to(device)
        for position in range(128):
            cache[:, position : position + 1] = query @ weight
            seen = cache[:, : position + 1]
            query = (query @ seen.transpose(1, 2)).softmax(-1) @ seen
            query = query / query.norm()
            out.append(query.cpu())
        return [*out, cache]

    assert count_of(run) <= 4


def test_masks_with_two_hundred_counts():
    x = values(4000, device="cpu")
    mine = x.to("tiny")
    thresholds = torch.linspace(-1.1, 1.1, 200)
    of_mine = [t.to("tiny") for t in thresholds.unbind()]
    torch.tiny.synchronize()
    torch.tiny.reset_stats()
    for threshold, same in zip(thresholds.unbind(), of_mine, strict=True):
        got, want = mine[mine > same].sum(), x[x > threshold].sum()
        torch.testing.assert_close(got.cpu(), want, rtol=1e-5, atol=1e-3)
    assert torch.tiny.stats()["compiles"] <= 3, torch.tiny.stats()["not_variable"]


def k_means(n, device):
    x = values(n, 2, device=device)
    centres = x[:3].clone()
    for _ in range(3):
        nearest = torch.cdist(x, centres).argmin(1)
        centres = torch.stack([x[nearest == k].mean(0) for k in range(3)])
    return [centres]


def suppressed(n, device):
    """Boxes that no better one overlaps."""
    corner, score = torch.rand(n, 2, generator=seeded(n)), torch.rand(n, generator=seeded(n + 1))
    boxes = torch.cat([corner, corner + torch.rand(n, 2, generator=seeded(n + 2))], 1).to(device)
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    order, kept = score.to(device).argsort(descending=True), []
    while order.numel() > 1:
        best, rest = order[0], order[1:]
        kept.append(int(best))
        overlap = torch.minimum(boxes[best, 2:], boxes[rest, 2:]) - torch.maximum(boxes[best, :2], boxes[rest, :2])
        shared = overlap.clamp(min=0).prod(1)
        order = rest[shared / (area[best] + area[rest] - shared) <= 0.5]
    return [torch.tensor(kept)]


def lu_with_pivots(n, device):
    a = values(n, n, device=device)
    for k in range(n - 1):
        pivot = int(a[k:, k].abs().argmax()) + k
        if pivot != k:
            a[[k, pivot]] = a[[pivot, k]]
        a[k + 1 :, k] /= a[k, k].clone()
        a[k + 1 :, k + 1 :] -= a[k + 1 :, k : k + 1] * a[k : k + 1, k + 1 :]
    return [a]


def windows(n, device):
    """Sums of windows whose beginnings and ends move, in memories of several sizes."""
    x, out = values(n, device=device), []
    for end in range(3, 40):
        out += [x[:end].cumsum(0)[-1].item(), (x[end // 2 : end] * 2).sum().item()]
    return [torch.tensor(out)]


def detections(n, device):
    """The best of each of three classes that no better one overlaps, of those likely at all."""
    corner, score = torch.rand(n, 2, generator=seeded(n)), torch.rand(n, 3, generator=seeded(n + 1)).to(device)
    boxes = torch.cat([corner, corner + torch.rand(n, 2, generator=seeded(n + 2))], 1).to(device)
    likely, out = score.max(1).values > 0.6, []
    boxes, score = boxes[likely], score[likely]
    for of_class in score.unbind(1):
        some = of_class > 0.3
        order = of_class[some].argsort(descending=True)[:20]
        best = boxes[some][order]
        overlap = torch.minimum(best[:, None, 2:], best[:, 2:]) - torch.maximum(best[:, None, :2], best[:, :2])
        out.append(best[~(overlap.clamp(min=0).prod(2).triu(1) > 0.3).any(0)])
    return out


@pytest.mark.parametrize(
    ("run", "sizes", "most"),
    [
        (k_means, (300, 257, 411, 350), 12),
        (suppressed, (40, 31, 52, 45, 38), 24),
        (lu_with_pivots, (12, 17, 14, 20), 24),
        (windows, (200, 203, 201, 205), 12),
        (detections, (60, 81, 67, 95, 74, 109, 88), 32),
    ],
    ids=lambda x: getattr(x, "__name__", None),
)
def test_algorithms_whose_sizes_depend_on_values_take_a_bounded_number(run, sizes, most):
    """Whatever the size: the last one has nothing left to compile."""
    counts = compiles(run, sizes)
    assert sum(counts) <= most and counts[-1] == 0, (counts, torch.tiny.stats()["not_variable"])


def filled_in_turn(n, device):
    a = torch.zeros(n, device=device)
    for i in range(n):
        a[i] = i
    return [a]


def copied_in_turn(n, device):
    """With temporaries, numbers that change, numbers that do not, and room behind."""
    x, a = values(n, device=device), torch.zeros(3000, device=device)
    for i in range(n):
        a[i + 1] = x[i] * 2 + i * 0.5
    return [a]


def grown(n, device):
    """By n each time: n + 4, 2 n + 4, 3 n + 4."""
    new, x, out = values(n, 8, device=device), values(4, 8, device=device), []
    for _ in range(6):
        x = torch.cat([x, new])
        out.append((x * 2).sum(0).cpu())
    return out


def last_columns(n, device):
    """The last token of a text that grows: of its length there is a stride alone."""
    ids, out = values(2, n, device=device), []
    for _ in range(6):
        ids = torch.cat([ids, ids[:, :1]], 1)
        torch.tiny.synchronize()
        out.append((ids[:, -1:] * 2).sum(1).cpu())
    return out


def resized(mode, **options):
    def frames(n, device):
        """Each of another size."""
        x = values(1, 3, n, n + n // 3, device=device)
        return [F.interpolate(x, mode=mode, **options).mean((2, 3))]

    return frames


def sieve(n, device):
    """Steps through a memory: the longer they are the fewer there are."""
    is_prime = torch.ones(n, dtype=torch.bool, device=device)
    is_prime[:2] = False
    for p in range(2, int(n**0.5) + 1):
        if is_prime[p]:
            is_prime[p * p :: p] = False
    return [is_prime]


FRAMES = (30, 41, 37, 52, 45, 61, 33, 48)


@pytest.mark.parametrize(
    ("run", "sizes", "most"),
    [
        (grown, (5, 7, 6, 11, 9, 13), 9),
        (last_columns, (5, 7, 9, 6, 12), 6),
        (resized("nearest", size=(16, 16)), FRAMES, 2),
        (resized("bilinear", size=(12, 20)), FRAMES, 2),
        (resized("bilinear", size=(12, 20), align_corners=True), FRAMES, 2),
        (resized("bicubic", scale_factor=2), FRAMES, 2),
        (sieve, (200, 300, 1000, 260, 500), 10),
    ],
    ids=["cat by n", "last column", "nearest", "bilinear", "corners", "bicubic", "sieve"],
)
def test_programs_whose_sizes_change_take_a_bounded_number(run, sizes, most):
    counts = compiles(run, sizes)
    assert sum(counts) <= most and counts[-1] == 0, (counts, torch.tiny.stats()["not_variable"])


@pytest.mark.parametrize("run", [filled_in_turn, copied_in_turn])
def test_a_loop_of_writes_is_one_kernel_for_any_number_of_steps(run):
    kernels = []

    def counted(n, device):
        torch.tiny.synchronize()
        before = torch.tiny.stats()["kernels"]
        out = run(n, device)
        torch.tiny.synchronize()
        kernels.append(torch.tiny.stats()["kernels"] - before)
        return out

    counts = compiles(counted, [100, 130, 77, 200, 150, 90, 111, 300, 70, 256])
    assert sum(counts) <= 2, torch.tiny.stats()["not_variable"]
    assert set(kernels[1::2]) == {1}
