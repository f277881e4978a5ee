"""One model, trained by several processes.

    torchrun --standalone --nproc-per-node 2 examples/torchrun.py

The script is the same for one process and for many. Every process computes its own share of each
mini-batch, all add the same noise to the same sum, and all end with the same model. ε is that of
one process: it depends on the plan, not on the number of processes.
"""

import os

import torch
from torch import nn

import dpdt
from dpdt.data import load

torch.manual_seed(0)  # every process must begin with the same weights
digits = load("digits")
result = dpdt.train(
    nn.Linear(64, 10), digits.train, test=digits.test, epochs=20, batch_size=1437, epsilon=8.0
)
if os.environ.get("RANK", "0") == "0":
    print(f"accuracy {result.history[-1]['accuracy']:.3f}")
    print(result.privacy)
