"""What a run is made of once its plan is known, and what makes it the same run later."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import nn

from dpdt import seal
from dpdt.algorithm.gradients import linear_layer
from dpdt.data.access import fingerprint, take
from dpdt.distributed.world import World
from dpdt.fields import AUTO, PUBLIC
from dpdt.methods import rate
from dpdt.methods.dpdt.whitening import Whitened
from dpdt.methods.method import Training
from dpdt.methods.plan import Plan
from dpdt.training import earlier
from dpdt.training.device import anywhere
from dpdt.users import Users


@dataclass(frozen=True, kw_only=True)
class Ready:
    """What is trained, on what, and the plan with its learning rate."""

    learner: nn.Module
    data: Any
    plan: Plan
    whitened: Whitened | None
    identity: Callable[[], dict[str, str]]

    @classmethod
    def of(
        cls,
        model: nn.Module,
        data: Any,
        public: Any,
        plan: Plan,
        identity: Callable[[], dict[str, str]],
        overwrite: bool,
    ) -> Ready:
        """In the coordinates that the plan asks for, with the learning rate that fits them."""
        learner, inputs, whitened = model, public, None
        if plan.header.preconditioner == PUBLIC:
            identity = partial(dict, identity())  # of the data as they are now, once and for all
            whitened = Whitened(model, public)
            learner, inputs = whitened.inner, whitened.inputs
            data = whitened.data(data, overwrite=overwrite)
        if plan.training.method.lr == AUTO:
            by_name = isinstance(take(data, torch.arange(1)), Mapping)
            linear = linear_layer(learner) is not None
            shown = rate.typical(inputs, data, learner, plan.problem.length)
            grown = 1.0 if linear else rate.GROWN
            reach = rate.reach_of(learner, shown, by_name=by_name, grown=grown)
            plan = plan.tuned(reach, linear=linear)
            if any(not p.requires_grad for p in learner.parameters()) and not linear:
                share = rate.bearable(learner, shown, plan.moved(), by_name=by_name)
                plan = plan.at_rate(plan.at(0).lr * share)
            else:
                rate.warn_of_zeros(learner)
        return cls(learner=learner, data=data, plan=plan, whitened=whitened, identity=identity)


def identity_of(
    model: nn.Module,
    data: Any,
    public: Any,
    users: Users | None,
    plan: Plan,
    world: World,
    local: bool,
    frozen: str,
) -> dict[str, str]:
    """What a state must have in common with the run that takes it."""
    owner: Any = None if users is None else (users.names, users.owner.tolist())
    if local:
        owner, hashes = world.gather(_digest(owner)), world.gather(fingerprint(data))
    else:
        hashes = [fingerprint(data, world)]
    if public is not None:
        hashes.append(fingerprint(public, world))
    shapes = {n: list(p.shape) for n, p in model.named_parameters() if p.requires_grad}
    return {
        "settings": _digest([asdict(anywhere(plan.training)), asdict(plan.header)]),
        "users": _digest(owner),
        "model": _digest(shapes),
        "frozen weights or buffers": frozen,
        "training data or public inputs": _digest(hashes),
    }


def frozen_of(model: nn.Module, *, private: bool) -> str:
    """A hash of what no step changes, and so no state holds. Without privacy buffers may change."""
    frozen = ((name, p) for name, p in model.named_parameters() if not p.requires_grad)
    kept = chain(frozen, model.named_buffers() if private else ())
    return _digest({name: f"{t.dtype} {earlier.hash_of(t)}" for name, t in kept})


def sealed(training: Training, source: str | None, seen: str, world: World) -> str:
    """A sealed identity of the data, of what they are and of their name if they have one.

    What they are is their `source`, or what each rank has seen of them.
    """
    everywhere = dict.fromkeys(world.gather(seen))
    content = f"examples {source or ' '.join(everywhere)}"
    name = training.privacy.dataset
    found: str = world.from_first(seal.sealed(seal.own_key(), content, name) if world.first else "")
    return found


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
