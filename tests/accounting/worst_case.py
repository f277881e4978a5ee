"""The exact privacy loss of the last iterate on a linear loss, by its affine recursion.

ℓ(θ; x) = ⟨x, θ⟩, identity preconditioner, one dimension, all shards 0 except one; the neighbouring
data set has −x for x. Nothing depends on θ, so θ is Gaussian: the difference of means D and the
variance V follow one line each. Written against the specification, independently of the package.
"""

import math


def contribution(g, pi, C, rho, eta, remembers):
    """Contribution and new multiplier of the one auxiliary whose gradient is g."""
    pi_hat = max(-C, min(C, pi))
    p = g + pi
    if p == 0:
        rate = eta
    else:
        root = math.sqrt(max(0.0, (pi_hat * p) ** 2 + p * p * (C * C - pi_hat * pi_hat)))
        rate = min(eta, max(0.0, (pi_hat * p + root) / (2 * rho * p * p)))
    u = rate * p
    return 2 * rho * u - pi_hat, (pi_hat - rho * u) if remembers else 0.0


def exact_mu(x, *, steps, takes_part, K, C, sigma, rho, eta, eta_hat, c, memory):
    """μ of the last iterate. C, σ, ρ, η̂, c and whether x takes part are functions of the step."""
    D = V = pi = 0.0
    for t in range(steps):
        g = x if takes_part(t) else 0.0
        h, pi = contribution(g, pi, C(t), rho(t), eta, memory == "auxiliary")
        D = c(t) * (D - eta_hat(t) * 2 * h / K)
        V = c(t) ** 2 * (V + (eta_hat(t) * sigma(t)) ** 2)
    return abs(D) / math.sqrt(V)
