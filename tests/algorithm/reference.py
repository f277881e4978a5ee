"""A slow, literal transcription of Algorithm 1, one auxiliary and one block after the other.

Written against the specification, not against the engine: numpy in float64, dictionaries of
vectors, no buffers. Blocks are lists of parameter names; a block's vector is their concatenation.
"""

import math

import numpy as np
import torch


class Reference:
    def __init__(self, model, loss, recipe, blocks):
        self.model, self.loss, self.recipe, self.blocks = model, loss, recipe, blocks
        self.named = dict(model.named_parameters())
        self.t = 0
        keys = range(recipe.auxiliaries) if recipe.memory == "auxiliary" else ["shared"]
        zero = [np.zeros(sum(self.named[n].numel() for n in names)) for names in blocks]
        self.pi = {k: [z.copy() for z in zero] for k in keys}
        self.v = {k: [z.copy() for z in zero] for k in keys}

    def vector(self, tensors, block):
        return np.concatenate(
            [tensors[n].detach().numpy().reshape(-1).astype(float) for n in self.blocks[block]]
        )

    def gradient(self, data):
        grads = torch.autograd.grad(
            self.loss(self.model, data), list(self.named.values()), allow_unused=True
        )
        return {
            n: torch.zeros_like(p) if g is None else g
            for (n, p), g in zip(self.named.items(), grads, strict=True)
        }

    def preconditioner(self, v, updates):
        kind = self.recipe.preconditioner
        if kind.name == "identity":
            return np.ones_like(v)
        corrected = v / (1 - kind.decay**updates) if kind.name == "adam" else v
        return 1 / np.maximum(np.sqrt(corrected), kind.floor)

    def step(self, micro_batches, epoch, z):
        r = self.recipe
        K, eta = r.auxiliaries, r.lr
        base, schedules = r.penalty, r.penalty_schedule
        factors = [schedules[k % len(schedules)].factor(epoch) for k in range(K)]
        rho = [base[k % len(base)] * factors[k] for k in range(K)]
        gradients = [None if d is None else self.gradient(d) for d in micro_batches]
        eta_hat = K * r.global_lr / sum(rho)
        new = {}
        for b in range(len(self.blocks)):
            theta = self.vector(self.named, b)
            C = r.clip[b] * r.clip_schedule.factor(epoch)
            g = [np.zeros_like(theta) if d is None else self.vector(d, b) for d in gradients]
            if r.memory == "shared":
                direction = self.shared(b, theta, g, C, rho[0], eta, z[b])
            else:
                total = np.zeros_like(theta)
                for k in range(K):
                    total += self.auxiliary(k, b, theta, g[k], C, rho[k], eta)
                direction = total / K + z[b]
            new[b] = self.prox(theta - eta_hat * direction, eta_hat)
        self.t += 1
        with torch.no_grad():
            for b, names in enumerate(self.blocks):
                sizes = np.cumsum([self.named[n].numel() for n in names])[:-1]
                for n, part in zip(names, np.split(new[b], sizes), strict=True):
                    self.named[n].copy_(torch.from_numpy(part).view_as(self.named[n]))

    def auxiliary(self, k, b, theta, g, C, rho, eta):
        r = self.recipe
        pi = self.pi[k][b] if r.memory == "auxiliary" else np.zeros_like(theta)
        pi_hat = pi * C / max(C, np.linalg.norm(pi))
        a = g + pi + r.auxiliary_weight_decay * theta
        if r.memory == "auxiliary":
            beta = r.preconditioner.decay
            self.v[k][b] = beta * self.v[k][b] + (1 - beta) * a**2
            p = self.preconditioner(self.v[k][b], self.t + 1) * a
        else:
            p = a
        pp, hp = p @ p, pi_hat @ p
        if pp == 0:
            eta_k = eta
        else:
            root = math.sqrt(max(0.0, hp**2 + pp * (C**2 - pi_hat @ pi_hat)))
            eta_k = min(eta, max(0.0, (hp + root) / (2 * rho * pp)))
        u = eta_k * p
        if r.memory == "auxiliary":
            self.pi[k][b] = pi_hat - rho * u
        h = 2 * rho * u - pi_hat
        assert np.linalg.norm(h) <= C * (1 + 1e-6)
        return h

    def shared(self, b, theta, g, C, rho, eta, z):
        r = self.recipe
        pi, v = self.pi["shared"][b], self.v["shared"][b]
        V = self.preconditioner(v, self.t) if self.t else np.ones_like(v)
        q = [2 * rho * eta * V * x for x in g]
        q = [x * C / max(C, np.linalg.norm(x)) for x in q]
        G = sum(q) / r.auxiliaries + z
        pi_hat = pi * C / max(C, np.linalg.norm(pi))
        u = G / (2 * rho) + eta * V * (pi_hat + r.auxiliary_weight_decay * theta)
        self.pi["shared"][b] = pi_hat - rho * u
        beta = r.preconditioner.decay
        self.v["shared"][b] = beta * v + (1 - beta) * (G / V / (2 * rho * eta)) ** 2
        return 2 * rho * u - pi_hat

    def prox(self, x, step):
        r = self.recipe
        if r.regularizer == "l2":
            return x / (1 + r.weight_decay * step)
        if r.regularizer == "l1":
            return np.sign(x) * np.maximum(np.abs(x) - r.weight_decay * step, 0)
        return x
