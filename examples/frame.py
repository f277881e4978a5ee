"""Regression on a pandas frame: what a flat costs a month, from its size, age and district.

Numbers are scaled by public constants, never by statistics of the data: a mean is a fact about
everyone in it. A category becomes a 0 or 1 for each district that its type declares. Districts that
merely occur in the data would be private.
"""

import numpy as np
import pandas as pd
from torch import nn

import dpdt

DISTRICTS = pd.CategoricalDtype(["harbour", "hill", "island", "old town"])
draws = np.random.default_rng(0)


def flats(number):
    """Inputs and rents in thousands, scaled by ranges that everybody knows."""
    frame = pd.DataFrame(
        {
            "size": draws.uniform(20, 140, number) / 140,  # square metres, at most 140
            "age": draws.uniform(0, 100, number) / 100,  # years
            "district": pd.Series(
                draws.choice(["harbour", "hill", "old town"], number), dtype=DISTRICTS
            ),
        }
    )
    place = frame["district"].map({"harbour": 0.4, "hill": 0.2, "old town": 0.0}).astype(float)
    rent = 0.3 + 1.2 * frame["size"] - 0.3 * frame["age"] + place
    return frame, (rent + draws.normal(0.0, 0.05, number)).astype("float32")


# The rule for the learning rate is made for classes. A squared error needs a rate that is given.
result = dpdt.train(
    nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1)),
    flats(5000),
    test=flats(500),
    loss=nn.MSELoss(),
    method="dpsgd",
    lr=0.1,
    epochs=20,
    batch_size=1000,
    epsilon=3.0,
)
print(f"mean squared error {result.history[-1]['mse']:.4f}; noise in the rents alone is 0.0025")
print(result.privacy)
