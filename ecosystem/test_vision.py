"""torchvision and timm: networks of random weights, forward, backward and a step; transforms, detection operators."""

from __future__ import annotations

import copy

import pytest
import torch

torchvision = pytest.importorskip("torchvision")
timm = pytest.importorskip("timm")

TORCHVISION = ["resnet18", "mobilenet_v3_small", "efficientnet_b0", "densenet121", "vit_b_32", "convnext_tiny"]
TIMM = ["resnet10t", "vit_tiny_patch16_224", "mobilenetv3_small_050", "convnext_atto", "efficientnet_lite0"]


def images(side: int) -> torch.Tensor:
    return torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(0))


def without_chance(network: torch.nn.Module) -> torch.nn.Module:
    """Dropout and stochastic depth draw other numbers on other devices."""
    for module in network.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        elif type(module).__name__ in ("StochasticDepth", "DropPath"):
            setattr(module, "p" if hasattr(module, "p") else "drop_prob", 0.0)
    return network


def runs_alike(network: torch.nn.Module, side: int) -> None:
    """The same results, and, computed in double precision so that nothing cancels, the same gradients and step."""
    x = images(side)
    network = without_chance(network).double()
    on_device = copy.deepcopy(network).to("tiny")
    with torch.no_grad():
        want, got = network.eval()(x.double()), on_device.eval()(x.double().to("tiny"))
    torch.testing.assert_close(got.cpu(), want)
    for n, given in ((network, x.double()), (on_device, x.double().to("tiny"))):
        optimizer = torch.optim.SGD(n.train().parameters(), lr=1e-3, momentum=0.9)
        n(given).square().mean().backward()
        optimizer.step()
    for (name, want), got in zip(network.state_dict().items(), on_device.state_dict().values(), strict=True):
        torch.testing.assert_close(got.cpu(), want, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("name", TORCHVISION)
def test_torchvision_network(name):
    torch.manual_seed(0)
    runs_alike(torchvision.models.get_model(name, weights=None), 224 if name.startswith("vit") else 64)


@pytest.mark.parametrize("name", TIMM)
def test_timm_network(name):
    torch.manual_seed(0)
    runs_alike(timm.create_model(name, pretrained=False, num_classes=10), 224 if name.startswith("vit") else 64)


TRANSFORMS = {
    "resize": ("Resize", (20, 24), {"antialias": True}),
    "center_crop": ("CenterCrop", (16,), {}),
    "pad": ("Pad", (3,), {"padding_mode": "reflect"}),
    "normalize": ("Normalize", ([0.5] * 3, [0.2] * 3), {}),
    "grayscale": ("Grayscale", (3,), {}),
    "flip": ("RandomHorizontalFlip", (1.0,), {}),
    "blur": ("GaussianBlur", (5, (1.0, 1.0)), {}),
    "solarize": ("RandomSolarize", (0.5, 1.0), {}),
    "autocontrast": ("RandomAutocontrast", (1.0,), {}),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transform_v2(name):
    from torchvision.transforms import v2

    kind, arguments, options = TRANSFORMS[name]
    arguments = ((20, 24),) if name == "resize" else arguments
    transform = getattr(v2, kind)(*arguments, **options)
    x = images(32).sigmoid()
    torch.testing.assert_close(transform(x.to("tiny")).cpu(), transform(x))


@pytest.mark.skipif(
    not torchvision.extension._has_ops(), reason="torchvision's compiled operators are for another torch"
)
def test_boxes_are_suppressed_and_aligned():
    from torchvision import ops

    boxes = torch.tensor([[0.0, 0, 10, 10], [1, 1, 11, 11], [20, 20, 30, 30]])
    scores = torch.tensor([0.9, 0.8, 0.7])
    kept = ops.nms(boxes.to("tiny"), scores.to("tiny"), 0.5)
    assert kept.device.type == "tiny" and kept.tolist() == ops.nms(boxes, scores, 0.5).tolist() == [0, 2]
    rois = torch.cat([torch.zeros(3, 1), boxes], 1)
    pooled = ops.roi_align(images(32).to("tiny"), rois.to("tiny"), 4)
    torch.testing.assert_close(pooled.cpu(), ops.roi_align(images(32), rois, 4))
