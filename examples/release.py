"""Train, release, check and use: everything that passes between two people, in one script.

The first half is whoever has the data. The second half is whoever gets the folder. They need not
trust each other: `verify` computes ε anew from the ledger in the certificate.
"""

import tempfile
from pathlib import Path

import torch
from torch import nn

import dpdt
from dpdt.data import load

digits = load("digits")
folder = Path(tempfile.mkdtemp()) / "release"

# Whoever has the data trains a model, and hands over a folder.
model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
result = dpdt.train(model, digits.train, epochs=30, batch_size=1437, epsilon=3.0)
dpdt.release(result, to=folder, description="scikit-learn's digits", public_test=digits.test)

# Whoever gets the folder checks it, and uses the model. Nothing from it is run or unpickled.
verdict = dpdt.verify(folder)
assert verdict.ok, verdict.problems
received = dpdt.load(folder, nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)))
with torch.no_grad():
    right = (received(digits.test[0]).argmax(1) == digits.test[1]).float().mean()
print(f"accuracy {right:.3f} of the model as it was received")
print((folder / "README.md").read_text("utf-8").split("## ")[1])
print(result.privacy)
