"""What a method is: its settings, what they rule out, its plan, and its engine.

A method is a frozen dataclass. Its fields are the keys of the section [method]. Its functions
answer everything that the rest of the library asks of a method, so nothing asks which one it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

from dpdt.errors import InputError
from dpdt.methods.settings import PrivacySettings, TrainSettings

if TYPE_CHECKING:
    import torch
    from torch import nn

    from dpdt.algorithm.batch import Batch
    from dpdt.algorithm.engine import StepResult
    from dpdt.algorithm.gradients import Loss
    from dpdt.distributed.world import World
    from dpdt.ledger import Setting
    from dpdt.methods.plan import Plan
    from dpdt.methods.problem import Problem
    from dpdt.noise import Randomness


class Engine(Protocol):
    """Takes the steps of a method."""

    steps: int

    def step(self, batch: Batch, setting: Setting) -> StepResult:
        """Take one step on a mini-batch, with the setting that was recorded; changes the model."""
        ...

    def check(self) -> None:
        """Refuse a model in which anything that is not trained has changed."""
        ...

    def finish(self) -> None:
        """Leave in the model what is to be released; no step may follow."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything that the run needs to continue, except its noise. As secret as the data."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Job:
    """What an engine is made from, besides the method's own settings."""

    model: nn.Module  # what is trained
    loss: Loss
    plan: Plan
    noise: Randomness
    world: World  # the ranks that train together
    public: Any = None  # public inputs
    by_name: bool = False  # examples are mappings, which the model takes as keywords
    diagnose: bool = False  # compute the quantities of the convergence theory
    optimizer: torch.optim.Optimizer | None = None  # one's own, where the method takes one
    scheduler: Any = None  # of that optimizer; stepped after each epoch

    @property
    def seed(self) -> int:
        """The public seed of whatever is random inside the model."""
        return self.plan.training.train.seed


class Method:
    """The base of all methods. What it answers by default holds for DP-SGD, GEP and PATE alike."""

    name: str
    lr: Any
    noise: Any = None
    granularity: str = "model"  # what is one block
    noise_bands: Any = 1  # over how many steps noise is correlated

    private: ClassVar[bool] = True  # has noise, and so a guarantee
    needs_public: ClassVar[bool] = False  # cannot run without public examples
    takes_pulls: ClassVar[bool] = True  # gradient canaries can be planted in it
    takes_optimizer: ClassVar[bool] = False  # a torch optimizer of one's own may follow the noise
    goes_back: ClassVar[bool] = True  # an earlier state may be loaded into a run that went on

    def check(self, train: TrainSettings, privacy: PrivacySettings) -> None:
        """Refuse settings that cannot be trained or accounted together."""
        refuse(
            (
                privacy.unit != "example",
                f"privacy.unit: {self.name} protects single examples here, found {privacy.unit!r}",
            ),
            (
                privacy.relation == "replace-one",
                f"privacy.relation: {self.name} is accounted under zero-out, or under add-remove "
                f"with privacy.examples, found {privacy.relation!r}",
            ),
            (
                privacy.accountant != "composition",
                f"privacy.accountant: {privacy.accountant!r} is about dpdt; use composition",
            ),
        )

    def relation(self, privacy: PrivacySettings) -> str:
        """Return which data sets are neighbours.

        Where an example takes part by a coin of its own, it may be blanked out in its place. The
        number of examples is then public, unless a nominal number stands for it.
        """
        return "add-remove" if privacy.examples else privacy.relation or "zero-out"

    @property
    def hides_number(self) -> bool:
        """Tell whether the number of examples may be private, with a nominal one in its place."""
        return False

    def settled(self, problem: Problem, train: TrainSettings) -> Method:
        """The method with every choice made that waits for the problem."""
        return self

    def state_size(self, problem: Problem, train: TrainSettings) -> int:
        """Bytes of what outlives a step and grows with the number of auxiliaries."""
        return 0

    def plan(self, problem: Problem, training: Training) -> Plan:
        """What every step does to privacy, before the noise is calibrated."""
        raise NotImplementedError

    def engine(self, job: Job) -> Engine:
        """What takes the steps of a plan."""
        raise NotImplementedError

    def without_noise(self, setting: Setting) -> Self:
        """The method as it took a step with this setting, but without noise. For audits."""
        return replace(self, noise=0.0)  # type: ignore[type-var]

    def findings(self, engine: Any, delta: float) -> dict[str, Any] | None:
        """What the engine found out about the run besides the model. As secret as the data."""
        return None


@dataclass(frozen=True, kw_only=True)
class Training:
    """What training needs besides a model and data."""

    method: Method
    train: TrainSettings = TrainSettings()
    privacy: PrivacySettings = PrivacySettings()

    def __post_init__(self) -> None:
        missing = self.method.noise is None and self.privacy.epsilon is None
        examples, relation = self.privacy.examples, self.privacy.relation
        refuse(
            (
                relation == "add-remove" and examples is None,
                "privacy.relation: under 'add-remove' the number of examples is private, so it "
                "needs privacy.examples, a nominal number that does not depend on the data; where "
                "the number is public, give 'zero-out'",
            ),
            (
                examples is not None and relation not in (None, "add-remove"),
                f"privacy.examples: is for the relation 'add-remove', found {relation!r}; leave "
                "one of them out",
            ),
            (
                examples is not None and not self.method.hides_number,
                f"privacy.examples: {self.method.name} deals examples by their number here, which "
                "is public then; leave it out, or use a method with Poisson sampling "
                "(sampling = 'poisson')",
            ),
            (
                self.method.private and missing,
                "method.noise: missing; give it, or a target privacy.epsilon to calibrate it for",
            ),
            (
                self.train.views > 1 and not self.train.augment,
                "train.views: all views of an image are the same unless train.augment is true, "
                f"found {self.train.views}; set train.augment, or leave views at 1",
            ),
        )
        self.method.check(self.train, self.privacy)


def refuse(*problems: tuple[bool, str]) -> None:
    """Raise the first message whose condition is true."""
    for wrong, message in problems:
        if wrong:
            raise InputError(message)
