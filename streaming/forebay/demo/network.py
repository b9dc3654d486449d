"""The demos' model: a small network that tells pictures of shapes apart."""

from __future__ import annotations

import torch
from torch import nn

from forebay.demo.task import SHAPES


class Network(nn.Module):
    """Three convolutions and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 16, 5, 2, 2),
            nn.ReLU(),
            nn.Conv2d(16, 24, 3, 1, 1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(24, 48, 3, 1, 1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
            nn.Linear(48 * 16, len(SHAPES)),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Scores ``[rows, shapes]`` of uint8 pictures ``[rows, height, width, 3]``."""
        out: torch.Tensor = self.body(images.permute(0, 3, 1, 2).float() / 127.5 - 1)
        return out


class Job:
    """A model, its optimiser, and how they learn from a batch."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        torch.set_num_threads(1)
        self.model = Network()
        self.optimiser = torch.optim.AdamW(self.model.parameters(), 1e-3)
        self.accuracy = 0.0

    def train(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        """One step; ``accuracy`` is a running mean of the share that it got right before it."""
        scores = self.model(images)
        loss = nn.functional.cross_entropy(scores, labels)
        self.optimiser.zero_grad()
        torch.autograd.backward(loss)
        self.optimiser.step()
        right = (scores.argmax(1) == labels).float().mean().item()
        self.accuracy += 0.05 * (right - self.accuracy)
