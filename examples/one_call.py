"""One call: train a classifier on digits with a proven ε of 8."""

from torch import nn

from dpdt import train
from dpdt.data import load

digits = load("digits")
result = train(
    nn.Linear(64, 10),
    digits.train,
    test=digits.test,
    epochs=40,
    batch_size=1437,
    epsilon=8.0,
    lr=1.8,
    penalty=0.17,
    global_lr=1.0,
    clip=1.2,
    granularity="model",
)
print(f"accuracy {result.history[-1]['accuracy']:.3f}")
print(result.privacy)
