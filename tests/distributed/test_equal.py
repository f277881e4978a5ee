"""A run of several ranks is the run of one process, to float rounding."""

import numpy as np
import pytest

from tests.distributed.cases import CASES, trained

RUNS = [(name, "deep") for name in CASES] + [
    (name, "conv") for name in ("auxiliary", "shared per example", "none poisson", "dpsgd")
]


@pytest.mark.parametrize(("name", "kind"), RUNS)
def test_ranks_train_what_one_process_trains(group, name, kind):
    alone, ranks = trained(name, kind), group.each(trained, name, kind)
    for rank, found in enumerate(ranks):
        assert found["rank"] == rank
        assert found["ledger"] == alone["ledger"]
        assert np.array_equal(found["weights"], ranks[0]["weights"])
        assert np.allclose(found["weights"], alone["weights"], rtol=2e-4, atol=2e-5)
    if name != "pate":  # whose teachers are trained by one rank each
        for found in ranks:
            assert np.allclose(found["losses"], alone["losses"], rtol=2e-4, atol=2e-5)
    else:
        for found in ranks:
            assert np.isclose(found["losses"].sum(), alone["losses"].sum(), rtol=1e-6)
