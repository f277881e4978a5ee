"""User-level privacy: ε protects everything that one user owns.

All examples of a user go to the same auxiliary. Mini-batches are fixed, so this ε is about
replacing one user by one who holds any number of examples. The rule for the learning rate does not
cover this case, so `lr` and `penalty` are given.
"""

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
    auxiliaries=100,
    memory="auxiliary",
    sampling="partition",
    epochs=2,
    batch_size=33,  # counted in users: a third of them, so an epoch has 3 mini-batches
    epsilon=8.0,
    lr=0.1,
    penalty=1.0,
    clip=1.0,
)
print(result.privacy)
