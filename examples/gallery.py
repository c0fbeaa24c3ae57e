"""Pictures of what the examples compute, one of which moves: `make gallery` puts them into docs/gallery/."""

import importlib.util
import struct
import sys
import zlib
from pathlib import Path

import torch

# From cold to hot: the colours between which the numbers from 0 to 1 are spread.
COLOURS = torch.tensor([[13, 8, 65], [84, 16, 110], [187, 55, 84], [249, 142, 9], [252, 255, 164]]) / 255.0


def simulate(name: str, *arguments) -> torch.Tensor:
    """What an example computes."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parent / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.simulate(*arguments)


def coloured(values: torch.Tensor) -> torch.Tensor:
    """Numbers as colours, from the least to the greatest: height x width x 3 bytes, four of them for a number."""
    values = values.cpu().double()
    values = (values - values.min()) / (values.max() - values.min()).clamp(min=1e-12) * (len(COLOURS) - 1)
    low = values.floor().clamp(max=len(COLOURS) - 2).long()
    part = (values - low)[..., None]
    colours = ((COLOURS[low] * (1 - part) + COLOURS[low + 1] * part) * 255).round().byte()
    return colours.repeat_interleave(2, 0).repeat_interleave(2, 1)


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def packed(picture: torch.Tensor) -> bytes:
    return zlib.compress(b"".join(b"\0" + bytes(row.flatten().tolist()) for row in picture), 9)


def png(pictures: list[torch.Tensor], seconds: float = 0.1) -> bytes:
    """A PNG file; of several pictures, one that shows them in turn."""
    height, width, _ = pictures[0].shape
    parts = [b"\x89PNG\r\n\x1a\n", chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))]
    if len(pictures) > 1:
        parts.append(chunk(b"acTL", struct.pack(">II", len(pictures), 0)))
    number = 0
    for i, picture in enumerate(pictures):
        if len(pictures) > 1:
            frame = (number, width, height, 0, 0, round(seconds * 1000), 1000, 0, 0)
            parts.append(chunk(b"fcTL", struct.pack(">IIIIIHHBB", *frame)))
            number += 1
        data = packed(picture)
        if i:
            data, number = struct.pack(">I", number) + data, number + 1
        parts.append(chunk(b"fdAT" if i else b"IDAT", data))
    return b"".join([*parts, chunk(b"IEND", b"")])


def speed(flow: torch.Tensor) -> torch.Tensor:
    return flow.square().sum(0).sqrt()


def pictures(device: str, size: int, steps: int) -> dict[str, list[torch.Tensor]]:
    """Of each example; `steps` is how long the longest runs."""
    moments = range(0, steps // 10 + 1, max(1, steps // 120))
    return {
        "heat": [coloured(simulate("heat", device, size, steps))],
        "wave": [coloured(simulate("wave", device, size, n)) for n in moments],
        "gray_scott": [coloured(simulate("gray_scott", device, size, 6 * steps)[1])],
        "life": [coloured(simulate("life", device, size, steps // 10))],
        "lattice_boltzmann": [coloured(speed(simulate("lattice_boltzmann", device, size, steps // 4)))],
        "ising": [coloured(simulate("ising", device, size, steps // 10))],
    }


def main(folder: str, device: str = "tiny", size: int = 96, steps: int = 1000) -> None:
    Path(folder).mkdir(parents=True, exist_ok=True)
    for name, shown in pictures(device, size, steps).items():
        (Path(folder) / f"{name}.png").write_bytes(png(shown))


if __name__ == "__main__":
    main(*sys.argv[1:2] or ["docs/gallery"])
