"""What the ranks of a run must have in common, found out before the first step.

A *rank* is one of the processes that train one model together. Usually all ranks are given the same
data, of which each reads its part. With `local` data each rank is given its own users, and nobody
else sees their examples.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import sys
from dataclasses import asdict, replace
from typing import Any

from torch import nn

from dpdt.algorithm.batch import leaves
from dpdt.algorithm.state import model_hash
from dpdt.data.access import count, fingerprint
from dpdt.distributed.world import World
from dpdt.errors import InputError
from dpdt.methods.method import Training
from dpdt.methods.plan import Plan
from dpdt.partition import PartitionOfUsers, Sampler
from dpdt.training.depends import surroundings
from dpdt.users import Users

NEVER = ("diagnose", "absent", "pulls")  # what a run of several ranks cannot have


def refuse_alone(world: World, given: Any, local: bool) -> None:
    """Refuse what several ranks cannot do, and what one rank alone cannot."""
    for name in NEVER:
        if not world.alone and given.get(name) not in (None, False):
            raise InputError(
                f"{name}: is for runs in one process, found {world.size} ranks; leave it out"
            )
    if local and world.alone:
        raise InputError("local: is for several ranks, found one; start the script by torchrun")


def number_of(world: World, data: Any, users: Users | None, training: Training, local: bool) -> int:
    """The public number of examples; of users, where what they hold is not public.

    It is that of all ranks together if each has its own.
    """
    number = count(data) if users is None else users.number
    if not local:
        return number
    if users is None:
        raise InputError(
            f"local: needs privacy.unit = 'user', found {training.privacy.unit!r}: only where a "
            "user's examples stay together can ranks keep their data to themselves"
        )
    found: list[int] = world.gather(number)
    return sum(found)


def refuse_empty(world: World, data: Any) -> None:
    """Refuse a rank without examples of its own, before any rank looks at an example."""
    for rank, number in enumerate(world.gather(count(data))):
        if not number:
            raise InputError(f"data: rank {rank} has no examples; give every rank some users")


def refuse_shared_users(world: World, users: Users) -> None:
    """Refuse users whose examples lie on several ranks: each would count several times.

    Ranks see keyed hashes of each other's users, not their names.
    """
    key = world.from_first(secrets.token_bytes(32))
    own = {hmac.digest(key, name.encode(), "sha256")[:16] for name in users.names}
    seen: dict[bytes, int] = {}
    for rank, hashes in enumerate(world.gather(own)):
        for one in hashes:
            if seen.setdefault(one, rank) != rank:
                raise InputError(
                    f"users: the same user has examples on rank {seen[one]} and rank {rank}; all "
                    "of a user's examples must lie on one rank, or they count twice"
                )


def own_users(world: World, whole: Sampler, users: Users) -> Sampler:
    """The auxiliaries of this rank, among which its own users are dealt."""
    assert isinstance(whole, PartitionOfUsers)
    refuse_shared_users(world, users)
    mine = world.share_of(whole.auxiliaries)
    return replace(whole, auxiliaries=len(mine), first=mine.start)


def refuse_unlike(
    world: World,
    model: nn.Module,
    plan: Plan,
    *,
    loss: Any,
    public: Any,
    users: Users | None,
    data: Any,
    seen: str,
    local: bool,
) -> None:
    """Refuse to train if the ranks were not started alike, or are too many."""
    if world.alone:
        return
    own: dict[str, Any] = {"data": "of this rank"} if local else {
        "training data": seen,
        "users": _digest(None if users is None else (users.names, users.owner.tolist())),
    }  # fmt: skip
    settings = asdict(plan.training)
    world.refuse_differences(
        {
            **{f"{part}.{k}": v for part in settings for k, v in settings[part].items()},
            f"number of {plan.header.counted}": plan.header.examples,
            **own,
            "form of an example": _form(data),
            "public inputs": None if public is None else fingerprint(public),
            "loss": getattr(loss, "__qualname__", type(loss).__qualname__),
            "model": model_hash(model),
            "plan": _digest([asdict(plan.header), [asdict(s) for s, _ in plan.runs]]),
            **surroundings(),
        }
    )
    _refuse_too_many(world, plan)


def refuse_sharded(model: nn.Module) -> None:
    """Refuse a model of which every rank has a part."""
    # whoever has a sharded tensor has imported this; importing it takes a second
    sharding: Any = sys.modules.get("torch.distributed.tensor")
    for name, parameter in model.named_parameters() if sharding else ():
        if isinstance(parameter, sharding.DTensor):
            raise InputError(
                f"parameter {name!r} is sharded over ranks (fully_shard), which does not go with "
                "gradients of single auxiliaries (docs/scaling.md); give every rank the whole model"
            )


def _refuse_too_many(world: World, plan: Plan) -> None:
    header, train = plan.header, plan.training.train
    number, what = header.auxiliaries, "method.auxiliaries: {} auxiliaries"
    if plan.shards is not None:
        number, what = plan.shards, "method.teachers: {} teachers"
    elif not plan.training.method.private:
        number, what = train.batch_size, "train.batch_size: mini-batches of {} examples"
    elif header.sampling == "poisson" and header.per_example:
        number, what = header.examples, "data: {} examples"
    if world.size > number:
        raise InputError(
            f"{what.format(number)} cannot be shared by {world.size} ranks; start at most {number}"
        )


def _form(data: Any) -> str:
    """The shapes and types of an example's tensors; of a Dataset, which is not read, its class."""
    found = leaves(data)
    shapes = ", ".join(f"{t.dtype} {tuple(t.shape[1:])}" for t in found)
    return shapes or type(data).__qualname__


def _digest(value: Any) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()
