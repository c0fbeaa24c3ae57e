"""Hugging Face transformers: small networks of random weights, forward, backward, generate, and the Trainer."""

from __future__ import annotations

import copy

import pytest
import torch

import torch_tinygrad

transformers = pytest.importorskip("transformers")

TOKENS = {"vocab_size": 96, "max_position_embeddings": 64}
SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
LLAMA = {**TOKENS, **SMALL, "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
BART = {
    **TOKENS,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
}

# name: (class of the network, class of its configuration, the configuration, whether it generates text)
LANGUAGE = {
    "gpt2": (
        "GPT2LMHeadModel",
        "GPT2Config",
        {"vocab_size": 96, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4},
    ),
    "llama": ("LlamaForCausalLM", "LlamaConfig", LLAMA),
    "mistral": ("MistralForCausalLM", "MistralConfig", LLAMA),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", LLAMA),
    "gemma": ("GemmaForCausalLM", "GemmaConfig", {**LLAMA, "head_dim": 8}),
    "mixtral": ("MixtralForCausalLM", "MixtralConfig", {**LLAMA, "num_local_experts": 4}),
    "mamba": (
        "MambaForCausalLM",
        "MambaConfig",
        {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4, "eos_token_id": None},
    ),
    "bert": ("BertForMaskedLM", "BertConfig", {**TOKENS, **SMALL}),
    "roberta": ("RobertaForMaskedLM", "RobertaConfig", {**TOKENS, **SMALL}),
    "t5": (
        "T5ForConditionalGeneration",
        "T5Config",
        {
            "vocab_size": 96,
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 64,
            "num_layers": 2,
            "num_heads": 4,
            "decoder_start_token_id": 0,
        },
    ),
    "bart": ("BartForConditionalGeneration", "BartConfig", BART),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", {**LLAMA, "head_dim": 8}),
    "qwen2 moe": (
        "Qwen2MoeForCausalLM",
        "Qwen2MoeConfig",
        {
            **LLAMA,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 16,
        },
    ),
    "gemma2": ("Gemma2ForCausalLM", "Gemma2Config", {**LLAMA, "head_dim": 8, "sliding_window": 4}),
    "phi3": ("Phi3ForCausalLM", "Phi3Config", LLAMA),
    "gpt neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", {**TOKENS, **SMALL, "eos_token_id": None}),
    "bloom": (
        "BloomForCausalLM",
        "BloomConfig",
        {"vocab_size": 96, "hidden_size": 32, "n_layer": 2, "n_head": 4, "eos_token_id": None},
    ),
    "opt": (
        "OPTForCausalLM",
        "OPTConfig",
        {
            **TOKENS,
            "hidden_size": 32,
            "ffn_dim": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "word_embed_proj_dim": 32,
            "eos_token_id": None,
        },
    ),  # fmt: skip
    "distilbert": (
        "DistilBertForMaskedLM",
        "DistilBertConfig",
        {**TOKENS, "dim": 32, "hidden_dim": 64, "n_layers": 2, "n_heads": 4},
    ),
    "albert": ("AlbertForMaskedLM", "AlbertConfig", {**TOKENS, **SMALL, "embedding_size": 16}),
    "deberta v2": (
        "DebertaV2ForMaskedLM",
        "DebertaV2Config",
        {**TOKENS, **SMALL, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "type_vocab_size": 0},
    ),
}
GENERATE = ["gpt2", "llama", "mistral", "qwen2", "gemma", "mixtral", "mamba", "t5", "bart"]
GENERATE += ["qwen3", "qwen2 moe", "gemma2", "phi3", "gpt neox", "bloom", "opt"]


def made(name: str) -> torch.nn.Module:
    network, configuration, options = LANGUAGE[name]
    torch.manual_seed(0)
    return getattr(transformers, network)(getattr(transformers, configuration)(**options)).eval()


def tokens(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(3, 96, shape, generator=torch.Generator().manual_seed(seed))


def close(got, want, **tolerances) -> None:
    torch.testing.assert_close(got.detach().cpu(), want.detach(), **({"rtol": 1e-3, "atol": 1e-4} | tolerances))


@pytest.mark.parametrize("name", LANGUAGE)
def test_values_and_gradients_are_the_cpus(name):
    on_cpu = made(name)
    on_tiny = copy.deepcopy(on_cpu).to("tiny")
    results = []
    for network, device in ((on_cpu, "cpu"), (on_tiny, "tiny")):
        ids = tokens(2, 12).to(device)
        out = network(input_ids=ids, labels=ids)
        out.loss.backward()
        results.append((out.loss, out.logits, [p.grad for p in network.parameters() if p.grad is not None]))
    (loss, logits, gradients), (got_loss, got_logits, got_gradients) = results
    close(got_loss, loss)
    close(got_logits, logits)
    assert len(gradients) == len(got_gradients)
    for got, want in zip(got_gradients, gradients, strict=True):
        close(got, want)


@pytest.mark.parametrize("name", GENERATE)
def test_generated_tokens_are_the_cpus(name):
    on_cpu = made(name)
    on_tiny = copy.deepcopy(on_cpu).to("tiny")
    for options in ({"do_sample": False}, {"num_beams": 2, "do_sample": False}):
        if name == "mamba" and "num_beams" in options:
            continue
        want, got = (
            network.generate(tokens(2, 5).to(device), max_new_tokens=6, pad_token_id=0, **options)
            for network, device in ((on_cpu, "cpu"), (on_tiny, "tiny"))
        )
        assert got.device.type == "tiny" and torch.equal(got.cpu(), want)


DECODING = {
    "greedy": {"do_sample": False},
    "sampling": {"do_sample": True},
    "beam": {"num_beams": 3, "do_sample": False},
}


@pytest.mark.parametrize("cache", [{}, {"cache_implementation": "static"}], ids=["dynamic", "static"])
@pytest.mark.parametrize("decoding", DECODING)
@pytest.mark.parametrize("name", ["llama", "gpt2", "t5"])
def test_prompts_of_any_length_share_programs(name, decoding, cache):
    """Samples are drawn from the device's own stream: they are compared with those of the device without programs."""
    on_cpu = made(name)
    on_tiny = copy.deepcopy(on_cpu).to("tiny")

    def generated(network, device, length):
        torch.manual_seed(length)
        options = {"max_new_tokens": 8, "pad_token_id": 0, **DECODING[decoding], **cache}
        return network.generate(tokens(2, length).to(device), **options).cpu()

    torch.tiny.synchronize()
    torch_tinygrad._C.clear_programs()
    programs = 0
    for length in (5, 9, 14):
        if decoding == "sampling":
            with torch.tiny.compile_mode("never"):
                want = generated(on_tiny, "tiny", length)
        else:
            want = generated(on_cpu, "cpu", length)
        torch.tiny.reset_stats()
        assert torch.equal(generated(on_tiny, "tiny", length), want)
        assert torch.tiny.wait_for_compiles(300)
        programs += torch.tiny.stats()["compiles"] + torch.tiny.stats()["loads"]
    assert programs <= 8, torch.tiny.stats()["not_variable"]
    assert torch.tiny.stats()["replays"] > torch.tiny.stats()["direct"]


def test_images_and_sound():
    vision = {**SMALL, "image_size": 16, "patch_size": 8}
    torch.manual_seed(0)
    vit = transformers.ViTForImageClassification(transformers.ViTConfig(**vision)).eval()
    clip = transformers.CLIPModel(
        transformers.CLIPConfig(text_config={**TOKENS, **SMALL}, vision_config=vision, projection_dim=16)
    ).eval()
    whisper = transformers.WhisperForConditionalGeneration(
        transformers.WhisperConfig(
            **{k: v for k, v in BART.items() if k != "max_position_embeddings"},
            num_mel_bins=8,
            max_source_positions=16,
            max_target_positions=16,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            decoder_start_token_id=1,
        )
    ).eval()
    pixels, sound = torch.randn(2, 3, 16, 16), torch.randn(1, 8, 32)
    programs = [
        lambda device: vit.to(device)(pixels.to(device)).logits,
        lambda device: (
            clip.to(device)(input_ids=tokens(2, 7).to(device), pixel_values=pixels.to(device)).logits_per_image
        ),
        lambda device: whisper.to(device)(sound.to(device), decoder_input_ids=tokens(1, 4).to(device)).logits,
    ]
    for program in programs:
        want = program("cpu")
        close(program("tiny"), want)
    want, got = (
        whisper.to(device).generate(sound.to(device), max_new_tokens=5, do_sample=False) for device in ("cpu", "tiny")
    )
    assert torch.equal(got.cpu(), want)
    gradients = []
    for device in ("cpu", "tiny"):
        network = copy.deepcopy(vit).to(device).train()
        network(pixels.to(device), labels=torch.tensor([0, 1], device=device)).loss.backward()
        gradients.append([p.grad for p in network.parameters()])
    for want, got in zip(*gradients, strict=True):
        close(got, want)


class Rows(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        ids = tokens(8, seed=i)
        return {"input_ids": ids, "labels": ids}


@pytest.mark.parametrize("options", [{}, {"bf16": True}, {"gradient_checkpointing": True}], ids=str)
def test_the_trainer_takes_the_device_by_itself(options, tmp_path):
    losses = {}
    for device, chosen in (("cpu", {"use_cpu": True}), ("tiny", {})):
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path), max_steps=4, per_device_train_batch_size=4, logging_steps=1, report_to=[],
            save_strategy="no", seed=0, **chosen, **options,
        )  # fmt: skip
        trainer = transformers.Trainer(made("llama"), arguments, train_dataset=Rows())
        assert trainer.args.device.type == trainer.model.device.type == device
        trainer.train()
        losses[device] = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses["tiny"] == pytest.approx(losses["cpu"], rel=2e-2 if "bf16" in options else 1e-3)


def test_weights_are_loaded_onto_the_device(tmp_path):
    made("llama").save_pretrained(tmp_path)
    for options in ({"device_map": "tiny"}, {"device_map": "auto"}):
        network = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, **options)
        assert {p.device.type for p in network.parameters()} == {"tiny"}
        close(network(tokens(1, 6).to("tiny")).logits, made("llama")(tokens(1, 6)).logits)
