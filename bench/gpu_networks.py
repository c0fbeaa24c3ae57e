"""Networks for `bench.gpu` that nothing here was tuned to, written plainly: training and inference on any device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

Step = Callable[[], Any]


def training(
    model: nn.Module, loss_of: Callable[[nn.Module], torch.Tensor], autocast: torch.dtype | None, device: str
) -> Step:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> float:
        optimizer.zero_grad()
        with torch.autocast(device, dtype=autocast, enabled=autocast is not None):
            loss = loss_of(model)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def gpt2(device: str, autocast: torch.dtype | None = None) -> Step:
    """GPT-2 small: 12 layers of width 768, batch 8, context 512."""
    from .gpt import GPT, Size

    torch.manual_seed(0)
    size = Size(vocabulary=50304, width=768, heads=12, layers=12, context=512)
    model = GPT(size).to(device)
    tokens = torch.randint(0, size.vocabulary, (8, size.context + 1)).to(device)
    inputs, wanted = tokens[:, :-1].contiguous(), tokens[:, 1:].flatten()
    return training(model, lambda m: F.cross_entropy(m(inputs), wanted), autocast, device)


class Bottleneck(nn.Module):
    def __init__(self, channels: int, width: int, stride: int):
        super().__init__()
        out = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out),
        )  # fmt: skip
        same = stride == 1 and channels == out
        self.short = (
            nn.Identity()
            if same
            else nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))
        )

    def forward(self, x):
        return F.relu(self.body(x) + self.short(x))


def resnet50() -> nn.Module:
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    ]
    channels = 64
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for i in range(count):
            layers.append(Bottleneck(channels, width, stride if i == 0 else 1))
            channels = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))


def resnet50_training(device: str) -> Step:
    torch.manual_seed(0)
    model = resnet50().to(device)
    images, labels = torch.randn(32, 3, 224, 224).to(device), torch.randint(0, 1000, (32,)).to(device)
    return training(model, lambda m: F.cross_entropy(m(images), labels), None, device)


class Encoder(nn.Module):
    """The layers of BERT-base and ViT-B/16: 12 of width 768."""

    def __init__(self, embed: nn.Module):
        super().__init__()
        from .gpt import Block

        self.embed, self.blocks, self.norm = embed, nn.ModuleList(Block(768, 12) for _ in range(12)), nn.LayerNorm(768)

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            q, k, v = block.split(x)
            x = block.join(x, F.scaled_dot_product_attention(q, k, v))
        return self.norm(x)


class Patches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cut, self.first = nn.Conv2d(3, 768, 16, 16), nn.Parameter(torch.zeros(1, 1, 768))
        self.places = nn.Parameter(torch.zeros(1, 197, 768))

    def forward(self, x):
        x = self.cut(x).flatten(2).transpose(1, 2)
        return torch.cat([self.first.expand(x.shape[0], -1, -1), x], 1) + self.places


def inference(model: nn.Module, x: torch.Tensor, device: str) -> Step:
    model = model.to(device, torch.float16).eval()
    wait = torch.tiny.synchronize if device == "tiny" else torch.cuda.synchronize

    def step() -> None:
        with torch.no_grad():
            kept = model(x)
        wait()
        del kept

    return step


def bert(device: str) -> Step:
    torch.manual_seed(0)
    return inference(Encoder(nn.Embedding(30522, 768)), torch.randint(0, 30522, (8, 128)).to(device), device)


def vit(device: str) -> Step:
    torch.manual_seed(0)
    return inference(Encoder(Patches()), torch.randn(32, 3, 224, 224).to(device, torch.float16), device)


def dcgan(device: str) -> Step:
    """A step of the discriminator on real and drawn images, and one of the generator."""
    torch.manual_seed(0)
    up: list[nn.Module] = []
    for before, after, stride, padding in ((100, 512, 1, 0), (512, 256, 2, 1), (256, 128, 2, 1), (128, 64, 2, 1)):
        up += [nn.ConvTranspose2d(before, after, 4, stride, padding, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
    generator = nn.Sequential(*up, nn.ConvTranspose2d(64, 3, 4, 2, 1, bias=False), nn.Tanh()).to(device)
    down: list[nn.Module] = [nn.Conv2d(3, 64, 4, 2, 1), nn.LeakyReLU(0.2)]
    for before, after in ((64, 128), (128, 256), (256, 512)):
        down += [nn.Conv2d(before, after, 4, 2, 1, bias=False), nn.BatchNorm2d(after), nn.LeakyReLU(0.2)]
    judge = nn.Sequential(*down, nn.Conv2d(512, 1, 4), nn.Flatten(0)).to(device)
    optimizers = [torch.optim.Adam(m.parameters(), lr=2e-4) for m in (judge, generator)]
    real, ones, zeros = torch.randn(128, 3, 64, 64).to(device), torch.ones(128).to(device), torch.zeros(128).to(device)

    def step() -> float:
        noise = torch.randn(128, 100, 1, 1, device=device)
        optimizers[0].zero_grad()
        drawn = generator(noise)
        entropy = F.binary_cross_entropy_with_logits
        (entropy(judge(real), ones) + entropy(judge(drawn.detach()), zeros)).backward()
        optimizers[0].step()
        optimizers[1].zero_grad()
        loss = entropy(judge(drawn), ones)
        loss.backward()
        optimizers[1].step()
        return loss.item()

    return step


def one(make: Callable[[], tuple], work: Callable) -> Callable[[str], Step]:
    def on(device: str) -> Step:
        torch.manual_seed(0)
        given = [t.to(device) if isinstance(t, torch.Tensor) else t for t in make()]
        wait = torch.tiny.synchronize if device == "tiny" else torch.cuda.synchronize

        def step() -> None:
            kept = work(*given)
            wait()
            del kept

        return step

    return on


NETWORKS: dict[str, tuple[Callable[[str], Step], int]] = {
    "GPT-2 small, training, fp32": (gpt2, 10),
    "GPT-2 small, training, bf16 autocast": (lambda device: gpt2(device, torch.bfloat16), 10),
    "ResNet-50, training, fp32, batch 32": (resnet50_training, 10),
    "BERT-base, inference, fp16, batch 8 x 128": (bert, 30),
    "ViT-B/16, inference, fp16, batch 32": (vit, 30),
    "DCGAN, a step of both": (dcgan, 20),
    "sort, 16 Mi floats": (one(lambda: (torch.rand(1 << 24),), torch.sort), 10),
    "topk 100 of 16 Mi": (one(lambda: (torch.rand(1 << 24), 100), torch.topk), 10),
    "x[x > .5], 16 Mi": (one(lambda: (torch.rand(1 << 24),), lambda x: x[x > 0.5]), 10),
    "cumsum, 64 Mi": (one(lambda: (torch.rand(1 << 26), 0), torch.cumsum), 10),
    "argmax, 256 Mi": (one(lambda: (torch.rand(1 << 28),), torch.argmax), 10),
    "sum over dim 0, 16384 x 4096": (one(lambda: (torch.rand(16384, 4096), 0), torch.sum), 10),
    "cross entropy, 4096 x 50304": (
        one(lambda: (torch.rand(4096, 50304), torch.randint(0, 50304, (4096,))), F.cross_entropy), 10,
    ),
}  # fmt: skip
