"""The secret draws of a run: its noise, and the coins that decide who takes part."""

from __future__ import annotations

from dpdt.distributed.world import World
from dpdt.errors import InputError
from dpdt.methods import bands
from dpdt.methods.plan import Plan
from dpdt.noise import Correlated, Randomness
from dpdt.ram import available, gigabytes


def streams(plan: Plan, world: World) -> tuple[Randomness, Randomness]:
    """Separate streams for noise and sampling, the same on all ranks."""
    seed, header = plan.training.privacy.noise_seed, plan.header
    seeds = (None, None) if seed is None else (2 * seed, 2 * seed + 1)
    coins = Randomness(seeds[1], from_first=world.from_first)
    if len(header.coefficients) == 1:
        return Randomness(seeds[0], from_first=world.from_first), coins
    needed, free = bands.memory(plan) * world.size, available()
    if free is not None and needed > free:
        raise InputError(
            f"method.noise_bands: the noise of {len(header.coefficients) - 1} earlier steps takes "
            f"{gigabytes(needed)} of memory, found {gigabytes(free)} free; give fewer bands"
        )
    return (
        Correlated(
            seeds[0],
            from_first=world.from_first,
            coefficients=header.coefficients,
            horizon=header.horizon,
        ),
        coins,
    )
