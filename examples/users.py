"""User-level privacy: a user's examples share an auxiliary, and ε protects the whole user."""

from torch import nn

import dpdt
from dpdt.data import load

digits = load("digits")
users = [f"user {i % 100}" for i in range(len(digits.train[0]))]  # who owns each example
result = dpdt.train(
    nn.Linear(64, 10),
    digits.train,
    users=users,
    unit="user",
    memory="auxiliary",
    auxiliaries=100,
    epochs=2,
    batch_size=480,
    epsilon=8.0,
    lr=0.1,
    clip=1.0,
    granularity="model",
)
print(result.privacy)
