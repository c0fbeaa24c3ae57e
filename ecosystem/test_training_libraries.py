"""peft, torchmetrics and Lightning: adapters, metrics and whole training runs on the device."""

from __future__ import annotations

import copy

import pytest
import torch

peft = pytest.importorskip("peft")
torchmetrics = pytest.importorskip("torchmetrics")
lightning = pytest.importorskip("lightning")


def network() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))


def batches(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    drawn = torch.Generator().manual_seed(1)
    return [
        (torch.randn(6, 8, generator=drawn), torch.randint(0, 4, (6,), generator=drawn)) for _ in range(count)
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["lora", "dora", "ia3", "oft"])
def test_peft_adapters_train_and_merge(kind):
    adapters = {
        "lora": lambda: peft.LoraConfig(r=4, target_modules=["0", "2"]),
        "dora": lambda: peft.LoraConfig(r=4, target_modules=["0", "2"], use_dora=True),
        "ia3": lambda: peft.IA3Config(target_modules=["0", "2"], feedforward_modules=[]),
        "oft": lambda: peft.OFTConfig(oft_block_size=4, r=0, target_modules=["0"]),
    }

    def trained(device):
        adapted = peft.get_peft_model(network(), adapters[kind]()).to(device)
        optimizer = torch.optim.AdamW([p for p in adapted.parameters() if p.requires_grad], lr=1e-2)
        losses = []
        for x, y in batches(4):
            loss = torch.nn.functional.cross_entropy(adapted(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        merged = adapted.merge_and_unload()
        assert next(merged.parameters()).device.type == torch.device(device).type
        return [*losses, *merged(batches(1)[0][0].to(device)).flatten().tolist()]

    assert trained("tiny") == pytest.approx(trained("cpu"), rel=1e-3, abs=1e-5)


METRICS = {
    "accuracy": lambda: torchmetrics.Accuracy(task="multiclass", num_classes=4),
    "f1": lambda: torchmetrics.F1Score(task="multiclass", num_classes=4, average="macro"),
    "auroc": lambda: torchmetrics.AUROC(task="multiclass", num_classes=4),
    "confusion": lambda: torchmetrics.ConfusionMatrix(task="multiclass", num_classes=4),
    "average_precision": lambda: torchmetrics.AveragePrecision(task="multiclass", num_classes=4, thresholds=20),
}


@pytest.mark.parametrize("name", METRICS)
def test_torchmetrics_classification(name):
    def measured(device):
        metric = METRICS[name]().to(device)
        for x, y in batches(3):
            metric.update(x[:, :4].softmax(-1).to(device), y.to(device))
        return metric.compute()

    got = measured("tiny")
    assert got.device.type == "tiny"
    torch.testing.assert_close(got.cpu(), measured("cpu"))


def test_torchmetrics_mean_and_error():
    for metric in (torchmetrics.MeanMetric(), torchmetrics.MeanSquaredError(), torchmetrics.PearsonCorrCoef()):
        results = []
        for device in ("cpu", "tiny"):
            used = copy.deepcopy(metric).to(device)
            for x, _ in batches(3):
                given = x[:, 0].to(device)
                used.update(given) if isinstance(used, torchmetrics.MeanMetric) else used.update(given, given.sin())
            results.append(used.compute().cpu())
        torch.testing.assert_close(results[1], results[0])


@pytest.fixture(params=["auto", "tiny", "cpu"])
def accelerator(request) -> str:
    return request.param


def expected(accelerator: str) -> str:
    return "cpu" if accelerator == "cpu" else "tiny"


def by_hand() -> list[float]:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for x, y in batches(4):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_fabric_chooses_the_device(accelerator):
    fabric = lightning.Fabric(accelerator=accelerator, devices=1)
    model, optimizer = fabric.setup(net := network(), torch.optim.SGD(net.parameters(), lr=0.1))
    assert fabric.device.type == next(model.parameters()).device.type == expected(accelerator)
    losses = []
    for x, y in batches(4):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(fabric.to_device(x)), fabric.to_device(y))
        fabric.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    assert losses == pytest.approx(by_hand(), rel=1e-4)


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.network, self.losses = network(), []

    def training_step(self, batch, index):
        loss = torch.nn.functional.cross_entropy(self.network(batch[0]), batch[1])
        self.log("loss", loss)
        self.losses.append(loss.item())
        self.seen, self.computed_in = loss.device.type, self.network(batch[0]).dtype
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def trainer(folder, accelerator: str, **options):
    return lightning.Trainer(
        accelerator=accelerator,
        devices=1,
        max_epochs=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        **options,
    )


def test_trainer_chooses_the_device(accelerator, tmp_path):
    module = Module()
    run = trainer(tmp_path, accelerator)
    run.fit(module, torch.utils.data.DataLoader(batches(4), batch_size=None))
    assert module.seen == expected(accelerator)
    assert module.losses == pytest.approx(by_hand(), rel=1e-4)
    run.save_checkpoint(tmp_path / "kept.ckpt")
    kept = torch.load(tmp_path / "kept.ckpt", map_location="cpu", weights_only=False)["state_dict"]
    for name, value in module.state_dict().items():
        torch.testing.assert_close(value.cpu(), kept[name])


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
def test_trainer_in_mixed_precision(precision, tmp_path):
    module = Module()
    trainer(tmp_path, "tiny", precision=precision).fit(module, torch.utils.data.DataLoader(batches(4), batch_size=None))
    assert module.computed_in == (torch.bfloat16 if precision == "bf16-mixed" else torch.float16)
    # In half precision the first scale is too large and its steps are skipped.
    compared = 4 if precision == "bf16-mixed" else 1
    assert module.losses[:compared] == pytest.approx(by_hand()[:compared], rel=2e-2)
