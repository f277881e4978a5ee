"""Whether what is said to be public is a part of the training data."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import DataLoader, Subset, TensorDataset, random_split

from dpdt.data.overlap import overlaps, same_inputs

X, Y = torch.randn(40, 6), torch.arange(40)
DATA = TensorDataset(X, Y)
LEFT, RIGHT = random_split(DATA, [30, 10])
FRAME = pd.DataFrame({"a": np.arange(40.0), "b": np.arange(40)})


@pytest.mark.parametrize(("data", "other", "found"), [
    ((X, Y), X[3:5], True),
    ((X, Y), (X[3:5].clone(), Y[3:5]), True),
    ((X, Y), X.numpy()[::7], True),
    ((X, Y), X[3:5].clone(), False),
    ((X, Y), X[[3, 4]], False),
    ((X[:30], Y[:30]), (X[30:], Y[30:]), False),
    (X[::2], X[1::2], False),
    (X[:, ::2], X[:, 1::2], False),
    ({"inputs": X, "labels": Y}, {"inputs": X[:9]}, True),
    (X.bfloat16(), X[:3], False),
    (X.to_sparse(), X[:3], False),
    (DATA, (X[:3], Y[:3]), True),
    (DATA, DATA, True),
    (LEFT, RIGHT, False),
    (DataLoader(LEFT), DataLoader(RIGHT), False),
    (LEFT, DATA, True),
    (LEFT, Subset(LEFT, [3]), True),
    (Subset(LEFT, [5, 3]), Subset(LEFT, [3, 4]), True),
    (Subset(LEFT, [5, 3]), Subset(LEFT, [1, 0]), False),
    (Subset(Subset(DATA, [10, 11]), [0]), Subset(DATA, [0]), False),
    (Subset(Subset(DATA, [10, 11]), [0]), Subset(DATA, [10]), True),
    ((FRAME, FRAME["b"]), FRAME[:5], True),
    ((FRAME[:30], FRAME["b"][:30]), FRAME[30:], False),
    ((FRAME, FRAME["b"]), FRAME[:5].copy(), False),
    ([[1.0, 2.0], [3.0, 4.0]], "text", False),
])  # fmt: skip
def test_what_is_in_both(data, other, found):
    assert overlaps(data, other) == overlaps(other, data) == found


def test_bfloat16_has_memory_too():
    half = X.bfloat16()
    assert overlaps(half, half[3:5])


def test_a_copy_of_all_inputs():
    assert same_inputs((X, Y), X.clone())
    assert same_inputs((X, Y), X.double())
    assert not same_inputs((X, Y), -X)
    assert not same_inputs({"inputs": X}, X)
    assert not same_inputs((X[:0], Y[:0]), X[:0])
