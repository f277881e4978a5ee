"""What a run did, in plain data: its header, the settings of its steps, and runs of equal steps."""

from __future__ import annotations

from dataclasses import dataclass

from dpdt.errors import InputError

KNOWN = {
    "method": ("dpdt", "dpsgd", "gep", "pate", "plain"),
    "memory": ("auxiliary", "shared", "none"),
    "sampling": ("partition", "poisson"),
    "unit": ("example", "shard", "user"),
    "relation": ("replace-one", "zero-out", "add-remove"),
    "preconditioner": ("identity", "rmsprop", "adam", "public"),
    "regularizer": ("none", "l2", "l1"),
    "release": ("all", "last"),
}


def counted(unit: str) -> str:
    """Say whose number is public. How many examples users hold is not."""
    return "users" if unit == "user" else "examples"


@dataclass(frozen=True, kw_only=True)
class Block:
    """A set of parameters that is clipped together, and whose noise has one scale."""

    name: str
    kind: str
    size: int


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What one step does: the clipping threshold C and noise σ of each block, and the step on θ."""

    clip: tuple[float, ...]
    noise: tuple[float, ...]
    penalty: float  # mean ρ over the auxiliaries
    lr: float  # η, the cap on the auxiliaries' learning rate
    global_lr: float  # η_θ
    step_size: float  # η̂ = η_θ / mean ρ
    contraction: float  # Lipschitz constant of the proximal operator
    spacing: tuple[float, ...] = ()  # of the lattice that a block's noisy mean lies on
    grid: tuple[float, ...] = ()  # a coarser one, that the noisy mean is rounded to last
    rounding: tuple[float, ...] = ()  # what rounding can add to the sensitivity of a block's mean
    penalties: tuple[float, ...] = ()  # ρ_k of each auxiliary, where they differ


@dataclass(frozen=True, kw_only=True)
class Header:
    """What does not change during a run."""

    method: str
    examples: int  # n, or the number of users; under add-remove a declared nominal number
    auxiliaries: int  # K, also the constant that sums are divided by
    batches: int  # M, steps in an epoch
    memory: str  # auxiliary | shared | none
    sampling: str  # partition | poisson
    unit: str  # example | shard | user
    relation: str  # replace-one | zero-out | add-remove
    blocks: tuple[Block, ...]
    per_example: bool = False  # every contribution belongs to one example, by construction
    rate: float = 1.0  # the probability that an example joins a mini-batch of its group (poisson)
    groups: int = 1  # examples are in as many groups, which take turns (poisson)
    coefficients: tuple[float, ...] = (1.0,)  # c of the noise; more than one: correlated (bands.py)
    horizon: int = 0  # T, the number of steps that correlated noise is made for
    reshuffle: bool = False  # an example's mini-batch changes from epoch to epoch
    preconditioner: str = "identity"
    regularizer: str = "none"
    weight_decay: float = 0.0
    auxiliary_weight_decay: float = 0.0
    gradient_bound: float | None = None  # on any example's gradient, by construction of the model
    smoothness: float | None = None  # of a convex loss, by construction of the model
    averaging: float = 0.0  # the model that leaves is a moving average of all iterates
    one_penalty: bool = True  # all auxiliaries have the same ρ
    release: str = "all"  # what may be seen: all iterates, or only the "last"
    private: bool = True  # False when noise or sampling came from a fixed seed

    @property
    def counted(self) -> str:
        """What `examples` is the number of."""
        return counted(self.unit)

    def __post_init__(self) -> None:
        for name, options in KNOWN.items():
            if getattr(self, name) not in options:
                found = getattr(self, name)
                raise InputError(f"{name} is {found!r}, which this version does not know")


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """Consecutive steps with one setting. The first of them is number `start` of the plan.

    Runs follow each other without a gap, unless a state was loaded and steps were taken again.
    """

    setting: Setting
    steps: int
    start: int = 0


@dataclass(frozen=True, kw_only=True)
class Planned:
    """What one setting of a tune would do: the header of its run, and its stretches of steps."""

    header: Header
    runs: tuple[Stretch, ...]


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """The run is one of a tune: a random number of runs, of which the best leaves.

    Each run has a setting that was drawn from `candidates` by secret coins, and a score: how many
    held-out examples its model gets right, with noise.
    """

    runs: float  # mean of the Poisson distribution that their number is drawn from; a 0 is redrawn
    noise: float  # standard deviation of the noise on a score; 0: the held-out examples are public
    candidates: tuple[Planned, ...]
    chosen: bool = False  # this is the run that leaves
