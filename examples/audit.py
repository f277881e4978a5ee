"""Attack a mechanism of one's own: is it as private as claimed?

Here it is a Gaussian mechanism with μ = 1 whose noise was halved by mistake.
"""

import numpy as np

from dpdt.accounting.gaussian import epsilon_of
from dpdt.audit.bounds import measure

runs, claimed_mu, delta = 20_000, 1.0, 1e-5
generator = np.random.default_rng()
with_record = 1.0 + generator.normal(0.0, 0.5, runs)  # should have been 1.0
without = generator.normal(0.0, 0.5, runs)

found = measure(with_record, without, delta=delta, beta=0.05)
print(f"claimed   μ = {claimed_mu}, ε = {epsilon_of(claimed_mu, delta):.2f}")
print(
    f"measured  μ ≥ {found.mu:.2f}, ε ≥ {found.epsilon:.2f} with {found.confidence:.0%} confidence"
)
print("refuted" if found.mu > claimed_mu else "consistent")
