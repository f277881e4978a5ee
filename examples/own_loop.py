"""A loop of one's own, with the algorithm as published and numbers of one's own.

There are 20 auxiliaries. Each keeps a state of its own between steps, which needs fixed
mini-batches. The ε printed here is therefore about replacing one example. It grows as the run goes
on.
"""

from torch import nn

import dpdt
from dpdt.data import load

digits = load("digits")
model = dpdt.make_private_ready(  # BatchNorm mixes examples: it becomes GroupNorm
    nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))
)
step, loader = dpdt.prepare(
    model,
    digits.train,
    epochs=3,
    batch_size=360,
    auxiliaries=20,
    memory="auxiliary",
    sampling="partition",
    granularity="layer",
    preconditioner="rmsprop",
    lr=1e-3,
    penalty=10.0,
    clip={"linear": 0.05, "norm": 0.02},
    noise={"linear": 0.02, "norm": 0.01},
    clip_schedule={"kind": "steps", "epochs": [2], "factors": [2, 1]},
)
for epoch in range(3):  # the loader yields one epoch each time
    for batch in loader:
        result = step(batch)
    print(f"epoch {epoch + 1}  loss {result.loss:.3f}  ε {step.privacy().epsilon:.3g}")
print(step.privacy())  # the step has ended the run after its last batch
