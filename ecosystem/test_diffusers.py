"""Hugging Face diffusers: small networks of random weights, a training step, schedulers and a whole pipeline."""

from __future__ import annotations

import copy

import pytest
import torch

diffusers = pytest.importorskip("diffusers")

BLOCKS = {"block_out_channels": (16, 32), "layers_per_block": 1, "norm_num_groups": 8}

# name: (class, its arguments, the inputs of a call after the noisy image and the time)
NETWORKS = {
    "unet": (
        "UNet2DModel",
        {
            "sample_size": 16,
            "in_channels": 3,
            "out_channels": 3,
            **BLOCKS,
            "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
            "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
        },
        3,
        {},
    ),
    "conditional unet": (
        "UNet2DConditionModel",
        {
            "sample_size": 8,
            "in_channels": 4,
            "out_channels": 4,
            **BLOCKS,
            "cross_attention_dim": 16,
            "attention_head_dim": 8,
            "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
            "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
        },
        4,
        {"encoder_hidden_states": (2, 5, 16)},
    ),
    "transformer": (
        "DiTTransformer2DModel",
        {
            "num_attention_heads": 2,
            "attention_head_dim": 8,
            "in_channels": 4,
            "num_layers": 2,
            "sample_size": 8,
            "patch_size": 2,
            "num_embeds_ada_norm": 10,
            "norm_num_groups": 4,
        },
        4,
        {},
    ),
}


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def networks(kind: str, options: dict) -> list[tuple[torch.nn.Module, str]]:
    torch.manual_seed(0)
    on_cpu = getattr(diffusers, kind)(**options).double().eval()
    return [(on_cpu, "cpu"), (copy.deepcopy(on_cpu).to("tiny"), "tiny")]


def alike(found: list) -> None:
    for want, got in zip(*found, strict=True):
        torch.testing.assert_close(got.detach().cpu(), want.detach(), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_training_step_is_the_cpus(name):
    kind, options, channels, given = NETWORKS[name]
    side, found = options["sample_size"], []
    for network, device in networks(kind, options):
        image = drawn(2, channels, side, side).to(device)
        inputs = {name: drawn(*shape, seed=1).to(device) for name, shape in given.items()}
        if name == "transformer":
            inputs["class_labels"] = torch.tensor([1, 3], device=device)
        noise = network(image, timestep=torch.tensor([3, 500], device=device), **inputs).sample
        optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
        noise.square().mean().backward()
        optimizer.step()
        found.append([noise, *network.parameters()])
    alike(found)


def test_the_autoencoder_is_the_cpus():
    found = []
    blocks = {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2}
    for network, device in networks("AutoencoderKL", {**BLOCKS, **blocks, "latent_channels": 4, "sample_size": 16}):
        hidden = network.encode(drawn(1, 3, 16, 16).to(device)).latent_dist
        image = network.decode(hidden.mode()).sample
        (image.square().mean() + hidden.kl().mean()).backward()
        found.append([image, hidden.mean, *(p.grad for p in network.parameters() if p.grad is not None)])
    alike(found)


@pytest.mark.parametrize(
    "kind", ["DDPMScheduler", "DDIMScheduler", "PNDMScheduler", "EulerDiscreteScheduler", "DPMSolverMultistepScheduler"]
)
def test_schedulers_take_the_cpus_steps(kind):
    found = []
    for device in ("cpu", "tiny"):
        scheduler = getattr(diffusers, kind)()
        scheduler.set_timesteps(6, device=device)
        image = drawn(1, 3, 8, 8).to(device)
        generator = torch.Generator().manual_seed(0)  # noise is drawn on the CPU and moved, by the library
        for step in scheduler.timesteps:
            options = {"generator": generator} if kind == "DDPMScheduler" else {}
            image = scheduler.step(scheduler.scale_model_input(image, step) * 0.1, step, image, **options).prev_sample
        found.append([image])
    alike(found)


def test_a_pipeline_draws_the_same_image():
    kind, options, _, _ = NETWORKS["unet"]
    images = []
    for network, device in networks(kind, options):
        pipeline = diffusers.DDIMPipeline(unet=network.float(), scheduler=diffusers.DDIMScheduler()).to(device)
        pipeline.set_progress_bar_config(disable=True)
        assert pipeline.device.type == device
        generator = torch.Generator().manual_seed(0)
        images.append(torch.from_numpy(pipeline(generator=generator, num_inference_steps=4, output_type="np").images))
    torch.testing.assert_close(images[1], images[0], rtol=1e-3, atol=1e-3)
