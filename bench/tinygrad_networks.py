"""The benchmarks' networks written for tinygrad; attributes are named as in PyTorch so that weights carry over."""

from __future__ import annotations

from tinygrad import Tensor, UOp, nn


class DemoNetwork:
    def __init__(self):
        self.layers = [
            nn.Conv2d(1, 32, 5),
            Tensor.relu,
            nn.Conv2d(32, 32, 5),
            Tensor.relu,
            nn.BatchNorm2d(32),
            Tensor.max_pool2d,
            nn.Conv2d(32, 64, 3),
            Tensor.relu,
            nn.Conv2d(64, 64, 3),
            Tensor.relu,
            nn.BatchNorm2d(64),
            Tensor.max_pool2d,
            lambda x: x.flatten(1),
            nn.Linear(576, 10),
        ]

    def __call__(self, x: Tensor) -> Tensor:
        return x.sequential(self.layers)


class Residual:
    def __init__(self, inner: int, outer: int, stride: int):
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outer)
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outer)
        self.downsample = []
        if stride != 1 or inner != outer:
            self.downsample = [nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer)]

    def __call__(self, x: Tensor) -> Tensor:
        passed = x.sequential(self.downsample)
        x = self.bn1(self.conv1(x)).relu()
        return (self.bn2(self.conv2(x)) + passed).relu()


class ResNet:
    def __init__(self, stages: tuple[tuple[int, int, int], ...], classes: int = 10):
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.blocks = [Residual(*stage) for stage in stages]
        self.fc = nn.Linear(512, classes)

    def __call__(self, x: Tensor) -> Tensor:
        x = self.bn1(self.conv1(x)).relu().max_pool2d((3, 3), 2, padding=1)
        return self.fc(x.sequential(self.blocks).mean((2, 3)))


class Block:
    def __init__(self, width: int, heads: int):
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = [nn.Linear(width, 4 * width), Tensor.gelu, nn.Linear(4 * width, width)]

    def __call__(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).reshape(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = q.scaled_dot_product_attention(k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.norm2(x).sequential(self.feed)

    def decode(self, x: Tensor, keys: Tensor, values: Tensor, position: UOp, seen: Tensor) -> Tensor:
        """One token: its key and value are stored at `position`, and it attends to what `seen` marks."""
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).reshape(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        for cache, new in ((keys, k), (values, v)):
            cache.shrink((None, None, (position, position + 1), None)).assign(new).realize()
        scores = (q @ keys.transpose(-1, -2)) * (width // self.heads) ** -0.5
        attended = seen.where(scores, float("-inf")).softmax(-1) @ values
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.norm2(x).sequential(self.feed)


class GPT:
    def __init__(self, vocabulary: int, width: int, heads: int, layers: int, context: int):
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = [Block(width, heads) for _ in range(layers)]
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def __call__(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions(Tensor.arange(tokens.shape[1]))
        return self.head(self.norm(x.sequential(self.blocks))).flatten(0, 1)

    def decode(self, token: Tensor, caches: list[tuple[Tensor, Tensor]], position: UOp) -> Tensor:
        context = caches[0][0].shape[2]
        seen = Tensor.arange(context) <= position
        x = self.tokens(token) + self.positions.weight.shrink(((position, position + 1), None))
        for block, (keys, values) in zip(self.blocks, caches, strict=True):
            x = block.decode(x, keys, values, position, seen)
        return self.head(self.norm(x))[:, -1].argmax(-1, keepdim=True)


class LSTMClassifier:
    """One LSTM layer, its cell repeated in Python, and a linear head on the last state."""

    def __init__(self, inputs: int, width: int, classes: int):
        self.lstm = type("Weights", (), {})()
        for name, shape in (("weight_ih_l0", (4 * width, inputs)), ("weight_hh_l0", (4 * width, width))):
            setattr(self.lstm, name, Tensor.zeros(*shape).contiguous().is_param_())
        for name in ("bias_ih_l0", "bias_hh_l0"):
            setattr(self.lstm, name, Tensor.zeros(4 * width).contiguous().is_param_())
        self.head = nn.Linear(width, classes)

    def __call__(self, x: Tensor) -> Tensor:
        w = self.lstm
        gates_of_inputs = x.linear(w.weight_ih_l0.T, w.bias_ih_l0 + w.bias_hh_l0)
        h = c = Tensor.zeros(x.shape[0], w.weight_hh_l0.shape[1])
        for t in range(x.shape[1]):
            i, f, g, o = (gates_of_inputs[:, t] + h @ w.weight_hh_l0.T).chunk(4, dim=1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
        return self.head(h)
