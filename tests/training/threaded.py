"""Trains small models of one family: `python -m tests.training.threaded FAMILY [THREADS]`."""

import sys
from functools import partial
from typing import Any

import torch
from torch import nn

import dpdt

MICRO: dict[str, Any] = {  # auxiliaries with several examples each
    "auxiliaries": 3, "memory": "auxiliary", "sampling": "partition", "lr": 1e-2, "penalty": 0.1,
    "preconditioner": "rmsprop", "clip": 1.0, "averaging": 0.0, "noise": 1.0,
}  # fmt: skip
OURS = MICRO, {"noise": 1.0}  # the latter with single examples
N = 189  # 63 examples for each of three auxiliaries
LABELS = torch.arange(N) % 3


class Shortcuts(nn.Module):
    """What others' residual networks do: a convolution of kernel 1 that skips places."""

    def __init__(self, channels):
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.norm = nn.GroupNorm(1, channels)
        self.long = nn.Conv2d(channels, 16, 3, 2, padding=1)
        self.short, self.head = nn.Conv2d(channels, 16, 1, 2), nn.Linear(16, 3)

    def forward(self, x):
        x = torch.relu(self.norm(self.stem(x)))
        return self.head(torch.relu(self.long(x) + self.short(x)).mean((2, 3)))


def shortcuts():
    """Few channels for the kernels of AVX2, and of AVX-512."""
    peers = {"method": "dpsgd", "noise": 1.0}, {"method": "plain"}
    train(partial(Shortcuts, 4), torch.randn(N, 3, 32, 32), (MICRO,))
    for channels in (4, 8):
        train(partial(Shortcuts, channels), torch.randn(N, 3, 16, 16), (*OURS, *peers))


def convolved(dims):
    kind = getattr(nn, f"Conv{dims}d")
    layers = nn.Sequential(kind(3, 4, 3, padding=1), nn.Tanh(), kind(4, 8, 1, 2), nn.Tanh())
    return layers.append(nn.Flatten()).append(nn.Linear(8 * 4**dims, 3))


def texts():
    ids = torch.arange(N).unsqueeze(1) * torch.arange(1, 9) % 30
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def bert():
    import transformers

    config = transformers.BertConfig(
        vocab_size=30, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=8, max_position_embeddings=16, num_labels=3,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config)


def last(x):
    """Channels last, where there are any."""
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x


def train(make, x, methods=OURS):
    """One epoch by each method."""
    data = {**x, "labels": LABELS} if isinstance(x, dict) else (last(x), LABELS)
    for settings in methods:
        torch.manual_seed(0)
        made = make()
        for p in made.parameters():
            p.data = last(p.data)
        result = dpdt.train(made, data, epochs=1, batch_size=N, **settings)
        assert result.history[-1]["loss"] < float("inf")


FAMILIES = {
    "mlp": lambda: train(
        lambda: nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3)), torch.randn(N, 20)
    ),
    "shortcuts": shortcuts,
    "volumes": lambda: train(lambda: convolved(3), torch.randn(N, 3, 8, 8, 8)),
    "sequences": lambda: train(lambda: convolved(1), torch.randn(N, 8, 3).mT),
    "bert": lambda: train(bert, texts()),
}

if __name__ == "__main__":
    torch.set_num_threads(int((*sys.argv, torch.get_num_threads())[2]))
    torch.manual_seed(0)
    FAMILIES[sys.argv[1]]()
