"""A six-layer GPT: training, and greedy decoding with a key-value cache that is written in place."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from .cnn import jitted_training
from .harness import TINYJIT, Contenders, Settings, Step, torch_contenders, workload
from .training import torch_training


@dataclass(frozen=True)
class Size:
    vocabulary: int = 1024
    width: int = 384
    heads: int = 6
    layers: int = 6
    context: int = 256


SMALL = Size(vocabulary=128, width=64, heads=2, layers=2, context=32)


class Block(nn.Module):
    """Causal attention and a feed-forward network, both with residuals."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width))

    def split(self, x):
        batch, length, _ = x.shape
        return self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)

    def join(self, x, attended):
        x = x + self.out(attended.transpose(1, 2).reshape(x.shape))
        return x + self.feed(self.norm2(x))

    def forward(self, x):
        q, k, v = self.split(x)
        return self.join(x, F.scaled_dot_product_attention(q, k, v, is_causal=True))

    def decode(self, x, keys, values, position, seen):
        """One token: its key and value are stored at `position`, and it attends to what `seen` marks."""
        q, k, v = self.split(x)
        keys[:, :, position] = k[:, :, 0]
        values[:, :, position] = v[:, :, 0]
        scores = q @ keys.transpose(-1, -2) * q.shape[-1] ** -0.5
        return self.join(x, scores.masked_fill(~seen, float("-inf")).softmax(-1) @ values)


class GPT(nn.Module):
    def __init__(self, size: Size):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(size.vocabulary, size.width), nn.Embedding(size.context, size.width)
        self.blocks = nn.Sequential(*[Block(size.width, size.heads) for _ in range(size.layers)])
        self.norm, self.head = nn.LayerNorm(size.width), nn.Linear(size.width, size.vocabulary, bias=False)

    def forward(self, tokens):
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.norm(self.blocks(self.tokens(tokens) + self.positions(places)))).flatten(0, 1)

    def decode(self, token, caches, position: int):
        """The token that follows `token`, which stands at `position`."""
        seen = torch.arange(caches[0][0].shape[2], device=token.device) <= position
        x = self.tokens(token) + self.positions.weight[position]
        for block, (keys, values) in zip(self.blocks, caches, strict=True):
            x = block.decode(x, keys, values, position, seen)
        return self.head(self.norm(x))[:, -1].argmax(-1, keepdim=True)


def built(settings: Settings) -> tuple[GPT, Size]:
    size = SMALL if settings.quick else Size()
    torch.manual_seed(0)
    return GPT(size), size


@workload("GPT, training, batch 8", "gpt", (1.0, 0.3, 1.2), tolerance=1e-3)
def gpt_training(settings: Settings) -> Contenders:
    model, size = built(settings)
    drawn = torch.randint(0, size.vocabulary, (8, size.context + 1), generator=torch.Generator().manual_seed(1))
    inputs = [drawn[:, :-1].contiguous(), drawn[:, 1:].flatten()]

    def tinyjit() -> Step:
        from dataclasses import astuple

        from .tinygrad_networks import GPT as Written

        return jitted_training(model, lambda: Written(*astuple(size)), inputs)

    loss = lambda model, inputs: F.cross_entropy(model(inputs[0]), inputs[1])  # noqa: E731
    return {**torch_contenders(torch_training(model, loss, inputs)), TINYJIT: tinyjit}


@workload("GPT, decoding 128 tokens, batch 1", "gpt", (1.0, 0.5, 1.2), tolerance=0.0)
def gpt_decoding(settings: Settings) -> Contenders:
    model, size = built(settings)
    model.eval()
    length = 16 if settings.quick else 128

    def make(device: str, compiled: bool) -> Step:
        own = copy.deepcopy(model).to(device)
        depth = size.width // size.heads
        decode = torch.compile(own.decode, dynamic=True) if compiled else own.decode

        def step() -> list[int]:
            caches = [
                [torch.zeros(1, size.heads, size.context, depth, device=device) for _ in range(2)]
                for _ in range(size.layers)
            ]
            token, tokens = torch.zeros(1, 1, dtype=torch.long, device=device), []
            with torch.no_grad():
                for position in range(length):
                    token = decode(token, caches, position)
                    tokens.append(token.item())
            return tokens

        return step

    def tinyjit() -> Step:
        from dataclasses import astuple

        from tinygrad import Tensor, TinyJit, Variable

        from .tinygrad_networks import GPT as Written
        from .tinygrad_side import load

        own = load(Written(*astuple(size)), model.state_dict())
        shape = (1, size.heads, size.context, size.width // size.heads)
        caches = [tuple(Tensor.zeros(*shape).contiguous().realize() for _ in range(2)) for _ in range(size.layers)]
        decode = TinyJit(lambda token, position: own.decode(token, caches, position).realize())
        place = Variable("position", 0, size.context - 1)

        def step() -> list[int]:
            token, tokens = Tensor([[0]]).contiguous().realize(), []
            for position in range(length):
                token = decode(token, place.bind(position)).clone().realize()
                tokens.append(token.item())
            return tokens

        return step

    return {**torch_contenders(make), TINYJIT: tinyjit}
