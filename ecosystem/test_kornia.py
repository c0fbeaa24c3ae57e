"""kornia: filters, colours, geometry, features and losses on the device, with gradients."""

from __future__ import annotations

import pytest
import torch

kornia = pytest.importorskip("kornia")

SQUARE = [[[2.0, 2], [12, 3], [13, 12], [3, 13]]]
MOVED = [[[1.0, 2], [13, 1], [12, 13], [2, 11]]]


def between(start: list, end: list, like: torch.Tensor) -> torch.Tensor:
    points = [torch.tensor(p, dtype=like.dtype, device=like.device) for p in (start, end)]
    return kornia.geometry.get_perspective_transform(*points)


# Functions of images in [0, 1], in double precision.
FUNCTIONS = {
    "gaussian blur": lambda x: kornia.filters.gaussian_blur2d(x, (5, 5), (1.5, 1.5)),
    "sobel": lambda x: kornia.filters.sobel(x),
    "canny": lambda x: kornia.filters.canny(x)[0],
    "median blur": lambda x: kornia.filters.median_blur(x, (3, 3)),
    "bilateral blur": lambda x: kornia.filters.bilateral_blur(x, (3, 3), 0.1, (1.5, 1.5)),
    "unsharp mask": lambda x: kornia.filters.unsharp_mask(x, (3, 3), (1.5, 1.5)),
    "lab": lambda x: kornia.color.rgb_to_lab(x),
    "hsv and back": lambda x: kornia.color.hsv_to_rgb(kornia.color.rgb_to_hsv(x)),
    "grayscale": lambda x: kornia.color.rgb_to_grayscale(x),
    "equalize": lambda x: kornia.enhance.equalize(x.detach().float()),
    "brightness": lambda x: kornia.enhance.adjust_brightness(x, 0.2),
    "rotate": lambda x: kornia.geometry.rotate(x, torch.tensor([30.0, -10.0], dtype=x.dtype, device=x.device)),
    "resize": lambda x: kornia.geometry.resize(x, (9, 11), antialias=True),
    "pyramid": lambda x: kornia.geometry.pyrdown(x),
    "perspective": lambda x: kornia.geometry.warp_perspective(x, between(SQUARE, MOVED, x).expand(2, 3, 3), (16, 16)),
    "harris corners": lambda x: kornia.feature.harris_response(x),
    "dilation": lambda x: kornia.morphology.dilation(x, torch.ones(3, 3, dtype=x.dtype, device=x.device)),
    "ssim": lambda x: kornia.losses.ssim_loss(x, x.flip(-1), 5),
    "total variation": lambda x: kornia.losses.total_variation(x),
}
WITHOUT_GRADIENT = {"equalize", "canny"}


def image(device: str) -> torch.Tensor:
    drawn = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return drawn.to(device).requires_grad_()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients_are_the_cpus(name):
    found = []
    for device in ("cpu", "tiny"):
        result = FUNCTIONS[name](x := image(device))
        assert result.device.type == device
        gradient = torch.zeros(1, device=device)
        if name not in WITHOUT_GRADIENT:
            result.square().sum().backward()
            gradient = x.grad
        found.append((result.detach(), gradient))
    (want, want_gradient), (got, got_gradient) = found
    torch.testing.assert_close(got.cpu(), want, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(got_gradient.cpu(), want_gradient, rtol=1e-5, atol=1e-7)


def test_augmentations_stay_on_the_device():
    augment = kornia.augmentation.AugmentationSequential(
        kornia.augmentation.RandomHorizontalFlip(p=1.0),
        kornia.augmentation.RandomAffine(degrees=(20.0, 20.0), p=1.0),
        kornia.augmentation.Normalize(mean=torch.full((3,), 0.5), std=torch.full((3,), 0.2)),
    )
    x = image("cpu").detach().float()
    want, got = augment(x), augment.to("tiny")(x.to("tiny"))
    assert got.device.type == "tiny"
    torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-4)
