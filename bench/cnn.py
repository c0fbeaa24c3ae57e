"""Convolutional networks: the demo's, and ResNet-18 on 64 by 64 images."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional as F

from .harness import TINYJIT, Contenders, Settings, Step, torch_contenders, workload
from .training import LEARNING_RATE, torch_training

GOALS = (0.8, 0.2, 1.2)


def demo_network() -> nn.Module:
    """As in examples/demo.py."""
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


class Residual(nn.Module):
    """Two 3x3 convolutions around which the input passes."""

    def __init__(self, inner: int, outer: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outer)
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outer)
        self.downsample = None
        if stride != 1 or inner != outer:
            self.downsample = nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))

    def forward(self, x):
        passed = x if self.downsample is None else self.downsample(x)
        x = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(x)) + passed)


STAGES = (
    (64, 64, 1),
    (64, 64, 1),
    (64, 128, 2),
    (128, 128, 1),
    (128, 256, 2),
    (256, 256, 1),
    (256, 512, 2),
    (512, 512, 1),
)


class ResNet18(nn.Module):
    def __init__(self, classes: int = 10):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.blocks = nn.Sequential(*[Residual(*stage) for stage in STAGES])
        self.fc = nn.Linear(512, classes)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        return self.fc(self.blocks(x).mean((2, 3)))


def classification(model: nn.Module, inputs: list[torch.Tensor]) -> torch.Tensor:
    return F.cross_entropy(model(inputs[0]), inputs[1])


def batch(count: int, channels: int, size: int) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(1)
    images = torch.randn(count, channels, size, size, generator=random)
    return [images, torch.randint(0, 10, (count,), generator=random)]


def jitted_training(model: nn.Module, written, inputs: list[torch.Tensor]) -> Step:
    """`written()` is the network in tinygrad, with attributes named as PyTorch's."""
    from tinygrad.nn.optim import SGD

    from .tinygrad_side import get_parameters, load, tensor, training

    network = load(written(), model.state_dict())
    images, labels = (tensor(i) for i in inputs)
    optimizer = SGD(get_parameters(network), lr=LEARNING_RATE)
    step = training(network, optimizer, lambda: network(images).sparse_categorical_crossentropy(labels))
    return lambda: step().item()


@workload("demo CNN, training, batch 64", "cnn", GOALS, tolerance=1e-3)
def demo_training(settings: Settings) -> Contenders:
    torch.manual_seed(0)
    model, inputs = demo_network(), batch(8 if settings.quick else 64, 1, 28)

    def tinyjit() -> Step:
        from .tinygrad_networks import DemoNetwork

        return jitted_training(model, DemoNetwork, inputs)

    return {**torch_contenders(torch_training(model, classification, inputs)), TINYJIT: tinyjit}


@workload("ResNet-18, training, batch 16", "cnn", GOALS, tolerance=1e-3)
def resnet_training(settings: Settings) -> Contenders:
    torch.manual_seed(0)
    model, inputs = ResNet18(), batch(2 if settings.quick else 16, 3, 64)

    def tinyjit() -> Step:
        from .tinygrad_networks import ResNet

        return jitted_training(model, lambda: ResNet(STAGES), inputs)

    return {**torch_contenders(torch_training(model, classification, inputs)), TINYJIT: tinyjit}


@workload("ResNet-18, inference, batch 16", "cnn", GOALS, tolerance=1e-3)
def resnet_inference(settings: Settings) -> Contenders:
    torch.manual_seed(0)
    model, (images, _) = ResNet18().eval(), batch(2 if settings.quick else 16, 3, 64)

    def make(device: str, compiled: bool) -> Step:
        own, moved = copy.deepcopy(model).to(device), images.to(device)
        run = torch.compile(own) if compiled else own

        def step() -> torch.Tensor:
            with torch.no_grad():
                return run(moved)

        return step

    def tinyjit() -> Step:
        from tinygrad import TinyJit

        from .tinygrad_networks import ResNet
        from .tinygrad_side import finished, load, tensor

        network, moved = load(ResNet(STAGES), model.state_dict()), tensor(images)
        run = TinyJit(lambda x: network(x).realize())
        return lambda: finished(run(moved))

    return {**torch_contenders(make), TINYJIT: tinyjit}
