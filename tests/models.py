"""The networks that the training tests run: small enough for a CPU, made of what real ones are made of."""

from __future__ import annotations

import torch
from torch import nn


def cnn() -> nn.Module:
    """Four convolutions on 28 x 28 images."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 5),
        nn.ReLU(),
        nn.Conv2d(32, 32, 5),
        nn.ReLU(),
        nn.BatchNorm2d(32),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3),
        nn.ReLU(),
        nn.BatchNorm2d(64),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(576, 10),
    )


def tiny_cnn() -> nn.Module:
    """The same kinds of layers on 8 x 8 images."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.BatchNorm2d(4), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 10)
    )


class LSTMClassifier(nn.Module):
    """Reads a sequence of token numbers and names its class from the last state."""

    def __init__(self, vocabulary: int = 20, width: int = 16, classes: int = 4, layers: int = 1):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, num_layers=layers, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, tokens):
        states, _ = self.lstm(self.embedding(tokens))
        return self.head(states[:, -1])


class Block(nn.Module):
    """Causal attention and a feed-forward network, both with residuals."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.feed(self.norm2(x))


class Transformer(nn.Module):
    """A causal language model of two blocks."""

    def __init__(self, vocabulary: int = 20, width: int = 16, heads: int = 2, layers: int = 2, length: int = 12):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.norm(self.blocks(self.tokens(tokens) + self.positions(positions)))).flatten(0, 1)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


def images(count: int, size: int, seed: int = 0):
    """A batch of images and their classes."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 1, size, size, generator=generator), torch.randint(0, 10, (count,), generator=generator)


def sequences(count: int, length: int = 12, classes: int = 4, seed: int = 0):
    """A batch of token sequences and one class for each."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 20, (count, length), generator=generator)
    return tokens, torch.randint(0, classes, (count,), generator=generator)


def next_tokens(count: int, length: int = 12, seed: int = 0):
    """A batch of token sequences and the token that follows each position."""
    tokens, _ = sequences(count, length + 1, seed=seed)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].flatten()


def vectors(count: int, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 8, generator=generator), torch.randint(0, 4, (count,), generator=generator)
