"""Images of bytes are resampled in whole numbers, each dimension rounded and cut off: equal to the CPU's bit by bit."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.differential import DEVICE

SIZES = ({"size": (17, 7)}, {"size": (5, 30)}, {"scale_factor": 1.7}, {"scale_factor": (1.05, 2.3)}, {"size": (3, 1)})


@pytest.mark.parametrize("mode", ("bilinear", "bicubic"))
@pytest.mark.parametrize("how", ("plain", "antialias", "align_corners"))
@pytest.mark.parametrize("channels", (3, 7))
def test_bytes_are_the_cpus(mode, how, channels):
    generator = torch.Generator().manual_seed(0)
    image = torch.randint(0, 256, (1, channels, 12, 11), dtype=torch.uint8, generator=generator)
    options = {} if how == "plain" else {how: True}
    for size in SIZES:
        for given in (image, image.contiguous(memory_format=torch.channels_last)):
            want = F.interpolate(given, mode=mode, **size, **options)
            found = F.interpolate(given.to(DEVICE), mode=mode, **size, **options)
            assert torch.equal(found.cpu(), want), size
