"""An LSTM of 64 steps, training."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from .cnn import jitted_training
from .harness import INDUCTOR, TINYJIT, Contenders, Settings, Step, torch_contenders, workload
from .training import torch_training

INPUTS, WIDTH, CLASSES, BATCH = 64, 128, 10, 32


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(INPUTS, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


@workload("LSTM, 64 steps, training", "lstm", (1.2, 0.7, None), tolerance=1e-3)
def lstm_training(settings: Settings) -> Contenders:
    torch.manual_seed(0)
    model, random = Classifier(), torch.Generator().manual_seed(1)
    steps = 8 if settings.quick else 64
    inputs = [
        torch.randn(BATCH, steps, INPUTS, generator=random),
        torch.randint(0, CLASSES, (BATCH,), generator=random),
    ]

    def tinyjit() -> Step:
        from .tinygrad_networks import LSTMClassifier

        return jitted_training(model, lambda: LSTMClassifier(INPUTS, WIDTH, CLASSES), inputs)

    loss = lambda model, inputs: F.cross_entropy(model(inputs[0]), inputs[1])  # noqa: E731
    contenders = torch_contenders(torch_training(model, loss, inputs))
    del contenders[INDUCTOR]  # torch.compile leaves an LSTM to ATen
    return {**contenders, TINYJIT: tinyjit}
