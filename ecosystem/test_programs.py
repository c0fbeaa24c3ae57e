"""Whole programs as newcomers write them: recipes with many parts of a library at once, beside the same on the CPU."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

accelerate = pytest.importorskip("accelerate")
diffusers = pytest.importorskip("diffusers")
lightning = pytest.importorskip("lightning")
peft = pytest.importorskip("peft")
timm = pytest.importorskip("timm")
torchmetrics = pytest.importorskip("torchmetrics")
torchvision = pytest.importorskip("torchvision")
transformers = pytest.importorskip("transformers")

transformers.logging.set_verbosity_error()


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))


def loader(size: int) -> torch.utils.data.DataLoader:
    classes = torch.randint(0, 4, (24,), generator=torch.Generator().manual_seed(1))
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(drawn(24, 8), classes), batch_size=size)


def numbers(value: Any) -> list[float]:
    if isinstance(value, torch.Tensor):
        return value.detach().double().flatten().tolist()
    if isinstance(value, dict):
        value = list(value.values())
    return [n for one in value for n in numbers(one)] if isinstance(value, (list, tuple)) else [float(value)]


def same(program: Any, *arguments: Any) -> None:
    want, got = numbers(program("cpu", *arguments)), numbers(program("tiny", *arguments))
    assert got and got == pytest.approx(want, rel=2e-3, abs=2e-4, nan_ok=True)


@pytest.fixture(autouse=True)
def states():
    """Its device is one for a process."""
    yield
    forget()


def forget() -> None:
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(True)
    GradientState._reset_state()


def accelerator(device: str, **options: Any) -> Any:
    forget()
    chosen = accelerate.Accelerator(cpu=device == "cpu", **options)
    assert chosen.device.type == device
    return chosen


def test_accelerate_accumulates_clips_and_saves_its_state(tmp_path):
    def losses(device):
        runs = accelerator(device, gradient_accumulation_steps=2)
        model = network()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer)
        model, optimizer, batches, schedule = runs.prepare(model, optimizer, loader(4), schedule)
        found = []
        for x, y in batches:
            with runs.accumulate(model):
                loss = F.cross_entropy(model(x), y)
                runs.backward(loss)
                if runs.sync_gradients:
                    runs.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            found.append(runs.gather_for_metrics(loss).mean())
        runs.save_state(tmp_path / device)
        kept = {name: value.cpu().clone() for name, value in runs.get_state_dict(model).items()}
        model[0].weight.data.zero_()
        runs.load_state(tmp_path / device)
        assert all(torch.equal(kept[name], value.cpu()) for name, value in model.state_dict().items())
        return found

    same(losses)


def test_accelerate_tries_a_smaller_batch_where_memory_runs_out():
    from torch_tinygrad.choice import is_host

    if not is_host():
        pytest.skip("the limit is of the host's memory")
    tried = []

    @accelerate.utils.find_executable_batch_size(starting_batch_size=64)
    def trained(size):
        tried.append(size)
        return (torch.ones(size, 1 << 20, device="tiny") * 2).sum(0).cpu()[0].item()

    torch.tiny.empty_cache()
    total = torch.tiny.mem_get_info()[1]
    try:
        torch.tiny.set_per_process_memory_fraction((torch.tiny.memory_reserved() + (100 << 20)) / total)
        assert trained() == 2 * tried[-1]
    finally:
        torch.tiny.set_per_process_memory_fraction(1.0)
    assert tried[0] == 64 and 1 <= tried[-1] < 64


def lightning_options(device: str, **options: Any) -> dict[str, Any]:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return {"accelerator": device, "devices": 1, **quiet, **options}


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.network, self.losses = network(), []

    def training_step(self, batch, index):
        loss = F.cross_entropy(self.network(batch[0]), batch[1])
        self.log("train", loss, on_epoch=True)
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch, index):
        self.log("valid", F.cross_entropy(self.network(batch[0]), batch[1]))

    def predict_step(self, batch, index):
        return self.network(batch[0])

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "valid"}}


def test_lightning_validates_keeps_and_resumes(tmp_path):
    from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

    def found(device):
        folder = tmp_path / device
        options = lightning_options(device, gradient_clip_val=0.5, accumulate_grad_batches=2)
        model = Classifier()
        callbacks = [ModelCheckpoint(folder, monitor="valid", save_last=True), EarlyStopping("valid")]
        trainer = lightning.Trainer(max_epochs=2, callbacks=callbacks, **options)
        trainer.fit(model, loader(6), loader(6))
        predicted = trainer.predict(model, loader(6))
        valid = trainer.validate(model, loader(6), verbose=False)[0]["valid"]
        again = Classifier.load_from_checkpoint(folder / "last.ckpt", weights_only=False)
        more = lightning.Trainer(max_epochs=3, enable_checkpointing=False, **options)
        more.fit(again, loader(6), loader(6), ckpt_path=folder / "last.ckpt", weights_only=False)
        assert len(again.losses) == 4
        return [model.losses, [p.cpu() for p in predicted], valid, again.losses]

    same(found)


class Adversaries(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        torch.manual_seed(1)
        self.maker, self.judge, self.losses = nn.Linear(3, 8), nn.Linear(8, 1), []

    def step(self, optimizer, loss_of):
        self.toggle_optimizer(optimizer)
        loss = loss_of()
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        self.untoggle_optimizer(optimizer)
        self.losses.append(loss.item())

    def training_step(self, batch, index):
        real, noise = batch[0], batch[0][:, :3]
        making, judging = self.optimizers()
        self.step(making, lambda: F.softplus(-self.judge(self.maker(noise))).mean())
        self.step(judging, lambda: (F.softplus(self.judge(self.maker(noise))) + F.softplus(-self.judge(real))).mean())

    def configure_optimizers(self):
        return torch.optim.Adam(self.maker.parameters(), 1e-2), torch.optim.Adam(self.judge.parameters(), 1e-2)


def test_lightning_trains_two_networks_by_hand():
    def losses(device):
        model = Adversaries()
        lightning.Trainer(max_epochs=2, enable_checkpointing=False, **lightning_options(device)).fit(model, loader(6))
        return model.losses

    same(losses)


@pytest.mark.parametrize("name", ["lamb", "adafactor", "nadamw", "lion", "sgdw", "adopt"])
def test_timm_s_recipe(name):
    """Its optimizers with mixed images, soft targets, clipped gradients, averaged weights and a schedule."""
    import numpy
    from timm.data import Mixup
    from timm.loss import SoftTargetCrossEntropy
    from timm.optim import create_optimizer_v2
    from timm.scheduler import CosineLRScheduler
    from timm.utils import ModelEmaV3, accuracy, dispatch_clip_grad

    def found(device):
        torch.manual_seed(0)
        numpy.random.seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 10)).to(device)
        average = ModelEmaV3(model, decay=0.9)
        optimizer = create_optimizer_v2(model, opt=name, lr=1e-2, weight_decay=0.05)
        schedule = CosineLRScheduler(optimizer, t_initial=5)
        mixed, results = Mixup(mixup_alpha=0.4, cutmix_alpha=1.0, num_classes=10), []
        for step in range(3):
            classes = torch.arange(step, step + 4).to(device)
            x, y = mixed(drawn(4, 3, 8, 8, seed=step).to(device), classes)
            loss = SoftTargetCrossEntropy()(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            dispatch_clip_grad(model.parameters(), 1.0)
            optimizer.step()
            average.update(model, step=step)
            schedule.step(step)
            results.append([loss, accuracy(model(x), classes, topk=(1, 5))])
        return [results, average.module[1].weight]

    same(found)


def test_torchvision_segments_and_gives_features():
    from torchvision.models.feature_extraction import create_feature_extractor

    def found(device):
        torch.manual_seed(0)
        options = {"weights": None, "weights_backbone": None, "num_classes": 3}
        model = torchvision.models.get_model("lraspp_mobilenet_v3_large", **options).to(device).eval()
        x = drawn(1, 3, 32, 32).to(device)
        loss = F.cross_entropy(model(x)["out"], torch.zeros(1, 32, 32, dtype=torch.long, device=device))
        loss.backward()
        backbone = torchvision.models.resnet18().to(device).eval()
        features = create_feature_extractor(backbone, {"layer1": "early", "layer3": "late"})(x)
        return [loss, next(model.parameters()).grad, features]

    same(found)


def test_torchvision_transforms_boxes_and_masks_with_images():
    from torchvision import ops, tv_tensors, utils
    from torchvision.transforms import v2

    def found(device):
        pixels = (drawn(3, 32, 40).sigmoid() * 255).to(torch.uint8).to(device)
        corners = torch.tensor([[2, 3, 10, 12], [5, 5, 30, 20]], device=device)
        sample = {
            "image": tv_tensors.Image(pixels),
            "boxes": tv_tensors.BoundingBoxes(corners, format="XYXY", canvas_size=(32, 40)),
            "masks": tv_tensors.Mask((pixels[:2] > 99).to(torch.uint8)),
        }
        results = []
        for transform in (
            v2.Resize((16, 20)), v2.RandomVerticalFlip(1.0), v2.CenterCrop(16), v2.ToDtype(torch.float32, scale=True),
            v2.ConvertBoundingBoxFormat("CXCYWH"), v2.ClampBoundingBoxes(), v2.RandomAdjustSharpness(2.0, 1.0),
            v2.RandomPosterize(3, 1.0), v2.RandomEqualize(1.0), v2.RandomInvert(1.0), v2.RandomRotation((30, 30)),
            v2.RandomAffine((10, 10), (0, 0), (1.2, 1.2)), v2.ColorJitter((1.3, 1.3), (1.2, 1.2), (0.8, 0.8)),
            v2.SanitizeBoundingBoxes(labels_getter=None),
        ):  # fmt: skip
            changed = transform(sample)
            assert all(value.device.type == device for value in changed.values())
            results.append([value.float().mean() for value in changed.values()])
        boxes = corners.float()
        drawing = utils.draw_bounding_boxes(utils.make_grid(torch.stack([pixels, pixels])), corners)
        return [
            results,
            drawing.float().mean(),
            ops.generalized_box_iou(boxes, boxes),
            ops.box_convert(boxes, "xyxy", "cxcywh"),
        ]

    same(found)


MEASURED = {
    "R2Score": ("regression", {}, "numbers"),
    "SpearmanCorrCoef": ("regression", {}, "numbers"),
    "KendallRankCorrCoef": ("regression", {}, "numbers"),
    "ConcordanceCorrCoef": ("regression", {}, "numbers"),
    "CohenKappa": ("", {"task": "multiclass", "num_classes": 4}, "classes"),
    "MatthewsCorrCoef": ("", {"task": "multiclass", "num_classes": 4}, "classes"),
    "JaccardIndex": ("", {"task": "multiclass", "num_classes": 4}, "classes"),
    "PrecisionRecallCurve": ("", {"task": "binary"}, "truths"),
    "CalibrationError": ("", {"task": "binary"}, "truths"),
    "RetrievalMAP": ("retrieval", {}, "queries"),
    "RetrievalNormalizedDCG": ("retrieval", {}, "queries"),
    "PeakSignalNoiseRatio": ("image", {"data_range": 1.0}, "images"),
    "StructuralSimilarityIndexMeasure": ("image", {"data_range": 1.0}, "images"),
    "UniversalImageQualityIndex": ("image", {}, "images"),
    "Perplexity": ("text", {}, "tokens"),
    "NormalizedMutualInfoScore": ("clustering", {}, "labels"),
    "AdjustedRandScore": ("clustering", {}, "labels"),
    "CramersV": ("nominal", {"num_classes": 4}, "labels"),
    "ScaleInvariantSignalDistortionRatio": ("audio", {}, "numbers"),
}


@pytest.mark.parametrize("name", MEASURED)
def test_torchmetrics_of_every_domain(name):
    import importlib

    room, options, of = MEASURED[name]
    kind = getattr(importlib.import_module(f"torchmetrics.{room}".rstrip(".")), name)
    one, other, chances = drawn(40).sigmoid(), drawn(40, seed=1).sigmoid(), drawn(40, 4, seed=2).softmax(-1)
    labels = torch.arange(40) % 4
    given = {
        "numbers": (one, other),
        "truths": (one, (other > 0.5).long()),
        "queries": (one, (other > 0.5).long(), torch.arange(40) // 10),
        "classes": (chances, labels),
        "labels": (labels, labels.flip(0)),
        "tokens": (chances[None], labels[None]),
        "images": (drawn(2, 3, 32, 32).sigmoid(), drawn(2, 3, 32, 32, seed=1).sigmoid()),
    }[of]

    def measured(device):
        metric = kind(**options).to(device)
        for _ in range(2):
            values = [value.to(device) for value in given]
            metric.update(*values[:2], **({"indexes": values[2]} if of == "queries" else {}))
        return copy.deepcopy(metric).compute()

    same(measured)


def test_diffusers_trains_with_averaged_and_weighted_steps(tmp_path):
    from diffusers.optimization import get_cosine_schedule_with_warmup
    from diffusers.training_utils import EMAModel, compute_snr

    def found(device):
        torch.manual_seed(0)
        blocks = {
            "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
            "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
        }
        sizes = {"sample_size": 8, "in_channels": 1, "out_channels": 1, "layers_per_block": 1, "norm_num_groups": 4}
        model = diffusers.UNet2DModel(**sizes, **blocks, block_out_channels=(8, 16), attention_head_dim=8).to(device)
        average = EMAModel(model.parameters(), decay=0.9, use_ema_warmup=True)
        average.to(device)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        schedule = get_cosine_schedule_with_warmup(optimizer, 2, 10)
        noising = diffusers.DDPMScheduler(num_train_timesteps=50)
        losses = []
        for step in range(3):
            x, noise = (drawn(2, 1, 8, 8, seed=2 * step + n).to(device) for n in (0, 1))
            times = torch.tensor([step, 40 - step], device=device)
            ratio = compute_snr(noising, times)
            squares = (model(noising.add_noise(x, noise, times), times).sample - noise).square().mean((1, 2, 3))
            loss = (squares * ratio.clamp(max=5) / ratio).mean()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            average.step(model.parameters())
            losses.append(loss)
        average.store(model.parameters())
        average.copy_to(model.parameters())
        averaged = model.conv_in.weight.clone()
        average.restore(model.parameters())
        model.save_pretrained(tmp_path / device)
        again = diffusers.UNet2DModel.from_pretrained(tmp_path / device).to(device)
        return [losses, averaged, again(x, 3).sample]

    same(found)


def test_the_trainer_evaluates_keeps_and_resumes(tmp_path):
    def found(device):
        sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
        without_chance = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        transformers.set_seed(0)
        config = transformers.BertConfig(vocab_size=50, num_labels=3, **sizes, **without_chance)
        model = transformers.BertForSequenceClassification(config)
        chance = torch.Generator().manual_seed(0)
        samples = [{"input_ids": torch.randint(0, 50, (7,), generator=chance), "labels": n % 3} for n in range(20)]

        def trainer(steps):
            how = transformers.TrainingArguments(
                str(tmp_path / device), max_steps=steps, per_device_train_batch_size=4, eval_strategy="steps",
                eval_steps=3, save_steps=3, logging_steps=1, report_to=[], use_cpu=device == "cpu", seed=1,
                disable_tqdm=True, lr_scheduler_type="cosine", label_smoothing_factor=0.1,
                gradient_accumulation_steps=2,
            )  # fmt: skip
            assert how.device.type == device

            def share(given):
                return {"share": float((given.predictions.argmax(-1) == given.label_ids).mean())}

            return transformers.Trainer(
                model, how, train_dataset=samples, eval_dataset=samples[:8], compute_metrics=share
            )

        trainer(3).train()
        resumed = trainer(6)
        resumed.train(resume_from_checkpoint=True)
        logged = [
            [line[k] for k in ("loss", "eval_loss", "grad_norm", "eval_share") if k in line]
            for line in resumed.state.log_history
        ]
        return [logged, torch.tensor(resumed.predict(samples[:5]).predictions)]

    same(found)


GENERATED = {
    "beams": {"num_beams": 3, "length_penalty": 2.0},
    "repetition penalty": {"repetition_penalty": 1.3},
    "no repeated pairs": {"no_repeat_ngram_size": 2},
    "a static cache": {"cache_implementation": "static"},
    "no cache": {"use_cache": False},
    "words that are forbidden": {"bad_words_ids": [[5], [6]]},
    "a least length": {"min_new_tokens": 4},
    "prompt lookup": {"prompt_lookup_num_tokens": 2},
    "an assistant": {"assistant_model": None},
}


@pytest.mark.parametrize("name", GENERATED)
def test_transformers_generates(name):
    def tokens(device):
        torch.manual_seed(0)
        sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 60}
        heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
        marks = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **heads, **marks)).eval().to(device)
        given = torch.tensor([[1, 5, 7, 9], [0, 1, 8, 3]], device=device)
        options = dict(GENERATED[name])
        if name in ("prompt lookup", "an assistant"):  # of one sequence at a time
            given = given[:1]
        if "assistant_model" in options:
            options["assistant_model"] = model
        return model.generate(given, attention_mask=(given != 0).long(), max_new_tokens=8, do_sample=False, **options)

    same(tokens)


SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
WORDS = {"vocab_size": 40}
# The model's class, its configuration, and what it is given.
NETWORKS = {
    "SegformerForSemanticSegmentation": (
        {"depths": [1] * 4, "hidden_sizes": [8, 8, 16, 16], "decoder_hidden_size": 16},
        {"pixel_values": drawn(1, 3, 32, 32)},
    ),
    "Wav2Vec2ForCTC": (
        {
            **SMALL, **WORDS, "conv_dim": (8, 8), "conv_stride": (4, 4), "conv_kernel": (8, 4),
            "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2,
        },
        {"input_values": drawn(1, 400), "labels": torch.tensor([[3, 4]])},
    ),
    "LongformerModel": ({**SMALL, **WORDS, "attention_window": 4}, {"input_ids": torch.arange(12).view(1, 12)}),
    "XLNetModel": (
        {**WORDS, "d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 24},
        {"input_ids": torch.arange(12).view(1, 12)},
    ),
    "SwinForImageClassification": (
        {"image_size": 32, "embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4},
        {"pixel_values": drawn(1, 3, 32, 32)},
    ),
    "Dinov2Model": ({**SMALL, "image_size": 28}, {"pixel_values": drawn(1, 3, 42, 28)}),
    "ElectraForPreTraining": (
        {**SMALL, **WORDS, "embedding_size": 8},
        {"input_ids": torch.arange(12).view(1, 12)},
    ),
    "FNetModel": (
        {**WORDS, "hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 24},
        {"input_ids": torch.arange(12).view(1, 12)},
    ),
    "YolosModel": (
        {**SMALL, "image_size": [32, 32], "num_detection_tokens": 3},
        {"pixel_values": drawn(1, 3, 32, 32)},
    ),
    "PatchTSTForPrediction": (
        {
            "num_input_channels": 1, "context_length": 16, "patch_length": 4, "patch_stride": 4, "d_model": 8,
            "num_attention_heads": 2, "num_hidden_layers": 1, "ffn_dim": 8, "prediction_length": 4,
        },
        {"past_values": drawn(1, 16, 1)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NETWORKS)
def test_transformers_networks_of_other_kinds(name):
    options, given = NETWORKS[name]
    kind = getattr(transformers, name)

    def found(device):
        torch.manual_seed(0)
        model = kind(kind.config_class(**options)).eval().to(device)
        results = model(**{key: value.to(device) for key, value in given.items()})
        first = next(v for v in results.values() if isinstance(v, torch.Tensor) and v.is_floating_point())
        first.square().mean().backward()
        return [first, [p.grad.abs().mean() for p in model.parameters() if p.grad is not None]]

    same(found)


@pytest.mark.parametrize("kind", ["LoraConfig", "PromptTuningConfig", "PrefixTuningConfig", "AdaLoraConfig"])
def test_peft_tunes_a_language_model(kind, tmp_path):
    options = {
        "LoraConfig": {"r": 2, "target_modules": ["c_attn"], "fan_in_fan_out": True},
        "PromptTuningConfig": {"num_virtual_tokens": 3},
        "PrefixTuningConfig": {"num_virtual_tokens": 3},
        "AdaLoraConfig": {"target_modules": ["c_fc"], "total_step": 5, "init_r": 3, "target_r": 2},
    }[kind]

    def losses(device):
        torch.manual_seed(0)
        without_chance = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        model = transformers.GPT2LMHeadModel(
            transformers.GPT2Config(vocab_size=40, n_embd=16, n_layer=2, n_head=2, **without_chance)
        )
        config = getattr(peft, kind)(task_type="CAUSAL_LM", **options)
        adapted = peft.get_peft_model(copy.deepcopy(model), config).to(device)
        optimizer = torch.optim.AdamW([p for p in adapted.parameters() if p.requires_grad], 1e-2)
        tokens, found = torch.arange(10).view(1, 10).to(device), []
        for step in range(3):
            loss = adapted(input_ids=tokens, labels=tokens).loss
            loss.backward()
            optimizer.step()
            if kind == "AdaLoraConfig":
                adapted.base_model.update_and_allocate(step + 1)
            optimizer.zero_grad()
            found.append(loss)
        adapted.save_pretrained(tmp_path / device)
        if kind != "AdaLoraConfig":  # which loads what is trained further alone
            again = peft.PeftModel.from_pretrained(copy.deepcopy(model), tmp_path / device).to(device)
            found.append(again(input_ids=tokens, labels=tokens).loss)
        return found

    same(losses)
