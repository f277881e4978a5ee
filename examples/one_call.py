"""One call: train a classifier on digits with a proven ε of 8.

No learning rate is given, and none is tuned: it follows from the noise. The ε is about adding or
removing one example.
"""

from torch import nn

from dpdt import train
from dpdt.data import load

digits = load("digits")
result = train(
    nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)),
    digits.train,
    test=digits.test,
    epochs=100,
    batch_size=1437,
    epsilon=8.0,
)
print(f"accuracy {result.history[-1]['accuracy']:.3f}")
print(result.privacy)
