"""A run's configuration: a TOML file or preset, checked before any work starts.

Every section is a frozen dataclass; every key has a check that says what would be right. The same
checks serve files, `--set` and the keyword arguments of the Python interface.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from importlib import resources
from pathlib import Path
from typing import Any, ClassVar

from dpdt.algorithm.blocks import GRANULARITIES
from dpdt.algorithm.preconditioner import DECAYS
from dpdt.algorithm.proximal import REGULARIZERS
from dpdt.checks import check_peer, check_together
from dpdt.errors import InputError
from dpdt.keys import (
    AUTO,
    PER_EXAMPLE,
    PUBLIC,
    choice,
    flag,
    integer,
    is_integer,
    is_number,
    is_positive,
    key,
    number,
    or_auto,
    positive,
    table_of,
)

MEMORIES = ("auxiliary", "shared", "none")
NAMES = ("dpdt", "dpsgd", "gep", "pate", "plain")


def _schedule(value: Any) -> bool:
    return isinstance(value, str | Mapping)


@dataclass(frozen=True, kw_only=True)
class Data:
    name: str = key("digits", "the name of a data set", lambda v: isinstance(v, str))
    limit: int | None = integer(None, 1)  # use this many training examples
    public: int = integer(0, 0)  # so many held-out examples, without labels, are public


@dataclass(frozen=True, kw_only=True)
class Model:
    name: str = key("linear", "the name of a model", lambda v: isinstance(v, str))
    hidden: tuple[int, ...] = key(
        (64,),
        "a list of layer widths",
        lambda v: isinstance(v, list | tuple) and all(is_integer(x) and x > 0 for x in v),
    )
    width: float = positive(1.0)
    layers: int | None = integer(None, 1)  # transformers that are not pretrained
    patch: int = integer(16, 1)  # vit-small
    pool: int = integer(1, 1)  # scatter: windows of features that are averaged
    radius: float | None = positive(None)  # linear: bound on the norm of inputs
    trained: str = choice("all", ("all", "lora", "head"))
    lora_rank: int = integer(16, 1)
    lora_alpha: int = integer(32, 1)
    pretrained: bool = flag(True)  # False: a random start, from the architecture alone
    tokenizer: str | None = key(None, "a folder", lambda v: isinstance(v, str))
    length: int = integer(128, 1)  # longest text, in tokens


@dataclass(frozen=True, kw_only=True)
class Method:
    """Decoupled training, Algorithm 1. Keys without a value here take it from RULE or OWN."""

    name: str = choice("dpdt", NAMES)
    auxiliaries: int | str = key(
        PER_EXAMPLE,
        f"a whole number from 1 or {PER_EXAMPLE!r}",
        lambda v: v == PER_EXAMPLE or (is_integer(v) and v >= 1),
    )
    memory: str = choice("shared", MEMORIES)
    sampling: str = choice(None, ("partition", "poisson"))
    reshuffle: bool = flag(False)
    preconditioner: str = choice(None, (*DECAYS, PUBLIC, AUTO))
    preconditioner_decay: float | None = number(None, most=0.999999)
    floor: float = positive(1e-8)
    lr: float | str = or_auto(None, "a positive number", is_positive)
    global_lr: float = positive(None)
    penalty: Any = key(
        None,
        "a positive number, 'auto', a list with one for each auxiliary, or a table "
        "{value, …schedule}",
        lambda v: (
            v == AUTO
            or (is_number(v) and v > 0)
            or (
                isinstance(v, list | tuple)
                and len(v) > 0
                and all(is_number(x) and x > 0 for x in v)
            )
            or (isinstance(v, Mapping) and is_number(v.get("value")) and v["value"] > 0)
        ),
    )
    clip: Any = key(
        None,
        "a positive number, or a table of them by kind or block",
        table_of(is_positive),
    )
    noise: Any = key(
        None,
        "a number from 0, or a table of them by kind or block",
        table_of(lambda v: is_number(v) and v >= 0),
    )
    clip_schedule: Any = key("constant", "constant, paper or a table", _schedule)
    noise_schedule: Any = key("constant", "constant or a table", _schedule)
    penalty_schedule: Any = key(
        "constant",
        "constant, paper, a table, or a list with one for each auxiliary",
        lambda v: (
            _schedule(v) or (isinstance(v, list | tuple) and len(v) > 0 and all(map(_schedule, v)))
        ),
    )
    regularizer: str = choice("l2", REGULARIZERS)
    weight_decay: float = number(0.0)
    auxiliary_weight_decay: float = number(0.0)
    granularity: str = choice(None, GRANULARITIES)
    averaging: float | str = or_auto(
        None, "a number from 0 below 1", lambda v: is_number(v) and 0 <= v < 1
    )

    def __post_init__(self) -> None:
        for name, value in (RULE if self._by_rule() else OWN).items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)

    def _by_rule(self) -> bool:
        """Whether the learning rate is left to the rule, and nothing given speaks against it."""
        if self.lr is not None:
            return self.lr == AUTO
        given = [getattr(self, name) for name in RULE if name not in ("clip", "averaging")]
        left = self.noise is None and all(value is None for value in given)
        other = isinstance(self.clip, Mapping) or self.reshuffle  # for several blocks; a partition
        return left and self.memory == "shared" and self.per_example and not other

    @property
    def per_example(self) -> bool:
        return self.auxiliaries == PER_EXAMPLE


# The rule that is the best known at a proven ε (docs/results.md), for those who leave it to us …
RULE: dict[str, Any] = {
    "sampling": "poisson",
    "preconditioner": AUTO,
    "lr": AUTO,
    "global_lr": 1.0,
    "penalty": AUTO,
    "clip": 0.1,
    "granularity": "model",
    "averaging": AUTO,
}
# … and where a run's own numbers start from.
OWN: dict[str, Any] = {
    "sampling": "partition",
    "preconditioner": "identity",
    "lr": 0.1,
    "global_lr": 0.99,
    "penalty": 1.0,
    "clip": 1.0,
    "granularity": "layer",
    "averaging": 0.0,
}


@dataclass(frozen=True, kw_only=True)
class Plain:
    """Training without privacy."""

    granularity: ClassVar[str] = "model"
    name: str = choice("plain", NAMES)
    optimizer: str = choice("sgd", ("sgd", "adamw"))
    lr: float = positive(0.1)
    momentum: float = number(0.9, most=0.999999)
    weight_decay: float = number(5e-4)
    lr_schedule: str = choice("cosine", ("cosine", "constant"))


@dataclass(frozen=True, kw_only=True)
class Dpsgd:
    """DP-SGD: Poisson sampling, one example a contribution."""

    granularity: ClassVar[str] = "model"
    name: str = choice("dpsgd", NAMES)
    clipping: str = choice("flat", ("flat", "layer", "automatic"))
    clip: float = positive(1.0)  # of an example's whole gradient
    stability: float = positive(0.01)  # γ of automatic clipping
    noise: float | None = number(None)  # the noise multiplier, in units of clip
    optimizer: str = choice("sgd", ("sgd", "adamw"))
    lr: float = positive(0.1)
    momentum: float = number(0.9, most=0.999999)
    weight_decay: float = number(0.0)


@dataclass(frozen=True, kw_only=True)
class Gep:
    """Gradient embedding perturbation: a few public directions, and what they leave."""

    granularity: ClassVar[str] = "model"
    name: str = choice("gep", NAMES)
    directions: int = integer(100, 1)  # of the public basis, over all groups
    groups: int = integer(1, 1)  # layers are split into this many groups with a basis each
    power_iterations: int = integer(1, 1)
    clip: float = positive(1.0)  # of the embedding
    residual_clip: float = positive(0.2)
    noise: float | None = number(None)  # the noise multiplier of both, in units of their clip
    optimizer: str = choice("sgd", ("sgd", "adamw"))
    lr: float = positive(0.1)
    momentum: float = number(0.9, most=0.999999)
    weight_decay: float = number(0.0)


@dataclass(frozen=True, kw_only=True)
class Pate:
    """Private aggregation of teacher ensembles, with confident GNMax."""

    granularity: ClassVar[str] = "model"
    name: str = choice("pate", NAMES)
    teachers: int = integer(100, 1)
    teacher_epochs: int = integer(20, 1)
    queries: int | None = integer(None, 1)  # public examples shown to the teachers; else all
    answers: int | None = integer(None, 1)  # at most this many are labelled; else half of them
    threshold: float = number(0.6, most=1.0)  # share of the votes that the winner must have
    threshold_noise: float = positive(0.15)  # in units of the number of teachers
    noise: float | None = number(None)  # of the votes, likewise
    optimizer: str = choice("adamw", ("sgd", "adamw"))
    lr: float = positive(0.01)
    momentum: float = number(0.9, most=0.999999)
    weight_decay: float = number(1e-4)


AnyMethod = Method | Dpsgd | Gep | Pate | Plain
METHODS: dict[str, type[AnyMethod]] = dict(
    zip(NAMES, (Method, Dpsgd, Gep, Pate, Plain), strict=True)
)


@dataclass(frozen=True, kw_only=True)
class Train:
    epochs: int = integer(20, 1)
    batch_size: int = integer(256, 1)
    augment: bool = flag(False)
    seed: int = integer(0, 0)


@dataclass(frozen=True, kw_only=True)
class Privacy:
    delta: float = key(
        1e-5, "a number between 0 and 1", lambda v: isinstance(v, float) and 0.0 < v < 1.0
    )
    allow_large_delta: bool = flag(False)  # δ of 1/n and more, which guarantees next to nothing
    epsilon: float | None = positive(None)
    accountant: str = choice(  # whose ε must meet the target
        "composition", ("composition", "hidden-state-convex", "hidden-state-contraction")
    )
    unit: str = choice("example", ("example", "shard", "user"))
    relation: str | None = key(
        None, "one of replace-one, add-remove", lambda v: v in ("replace-one", "add-remove")
    )
    release: str = choice("all", ("all", "last"))  # "last": nothing but the last iterate leaves
    noise_seed: int | None = integer(None, 0)  # for tests: the run is then not private


@dataclass(frozen=True, kw_only=True)
class Audit:
    """Canaries that take the place of training examples, so that the run can be audited."""

    canaries: int = integer(0, 0)
    canary: str = choice("mislabelled", ("mislabelled", "noise", "gradient"))

    @property
    def gradient(self) -> bool:
        """Whether there are canaries that are no examples but pulls on θ."""
        return self.canaries > 0 and self.canary == "gradient"


SECTIONS: dict[str, type] = {
    "data": Data,
    "model": Model,
    "method": Method,
    "train": Train,
    "privacy": Privacy,
    "audit": Audit,
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What training needs besides a model and data."""

    method: AnyMethod = Method()
    train: Train = Train()
    privacy: Privacy = Privacy()

    def __post_init__(self) -> None:
        if isinstance(self.method, Method):
            check_together(self.method, self.train, self.privacy)
        elif not isinstance(self.method, Plain):
            check_peer(self.method, self.privacy)


@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """A whole run."""

    data: Data = Data()
    model: Model = Model()
    audit: Audit = Audit()

    def as_tables(self) -> dict[str, Any]:
        """Nested dicts that can be written as TOML; keys without a value are left out."""
        return {
            section: {k: v for k, v in asdict(getattr(self, section)).items() if v is not None}
            for section in SECTIONS
        }


def settings(method: str = "dpdt", **options: Any) -> Settings:
    """Settings from flat keyword arguments: epochs=…, clip=…, epsilon=…, as in the sections."""
    if method not in METHODS:
        raise InputError(f"method: must be one of {', '.join(METHODS)}, found {method!r}")
    tables: dict[str, dict[str, Any]] = {"method": {"name": method}, "train": {}, "privacy": {}}
    _spread(options, tables, "")
    return Settings(**{s: _section(s, t) for s, t in tables.items()})


def _spread(options: Mapping[str, Any], tables: dict[str, dict[str, Any]], where: str) -> None:
    """Put flat options into the sections they belong to."""
    method = METHODS[tables["method"]["name"]]
    classes = {"method": method, "train": Train, "privacy": Privacy}
    homes = {f.name: s for s, c in classes.items() for f in fields(c) if f.name != "name"}
    for name, value in options.items():
        if name not in homes:
            raise InputError(f"{where}{name}: no such setting{_suggest(name, homes)}")
        tables[homes[name]][name] = value


def load(
    source: str,
    overrides: tuple[str, ...] = (),
    method: str | None = None,
    target: float | None = None,
) -> Config:
    """A configuration from a preset's name or a TOML file, with `a.b=c` overrides.

    `target` is the ε of one that gives neither noise nor a target of its own.

    `method` asks for a method with the file's values for it: those of its table `peers.<method>`,
    on the defaults. A file without that table, whose own method it is, keeps its own values.
    """
    tables = _read(source)
    peers = tables.pop("peers", {})
    if not isinstance(peers, Mapping) or not all(isinstance(p, Mapping) for p in peers.values()):
        raise InputError(f"{source}: peers must hold tables, one for each method")
    changes = [_override(o) for o in overrides]
    for section, found in [*tables.items(), *((path[0], {}) for path, _ in changes)]:
        if section not in SECTIONS:
            raise InputError(f"{section}: no such section{_suggest(section, SECTIONS)}")
        if not isinstance(found, Mapping):
            raise InputError(f"{section}: must be a table, [{section}], found {found!r}")
    own = tables.setdefault("method", {}).setdefault("name", "dpdt")
    asked = method or next((v for path, v in changes if path == ["method", "name"]), None)
    for name in (asked, *peers):
        if name is not None and name not in METHODS:
            raise InputError(f"method.name: must be one of {', '.join(METHODS)}, found {name!r}")
    if asked is not None and (asked != own or (method is not None and asked in peers)):
        tables["method"] = {"name": asked}
        train, privacy = tables.setdefault("train", {}), tables.setdefault("privacy", {})
        chosen = {"method": tables["method"], "train": train, "privacy": privacy}
        _spread(peers.get(asked, {}), chosen, f"peers.{asked}.")
    for path, value in changes:
        table = tables
        for part in path[:-1]:
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                raise InputError(f"--set {'.'.join(path)}: {part} is not a table")
        table[path[-1]] = value
    if target is not None and "noise" not in tables["method"]:
        tables.setdefault("privacy", {}).setdefault("epsilon", target)
    return Config(**{s: _section(s, tables.get(s, {})) for s in SECTIONS})


def _override(text: str) -> tuple[list[str], Any]:
    path, separator, value = text.partition("=")
    parts = path.strip().split(".")
    if not separator or len(parts) < 2:
        raise InputError(f"--set {text}: must look like section.key=value")
    return parts, _value(value.strip())


def presets() -> list[str]:
    """The names of the presets that come with the package."""
    folder = resources.files("dpdt") / "presets"
    return sorted(p.name[:-5] for p in folder.iterdir() if p.name.endswith(".toml"))


def _read(source: str) -> dict[str, Any]:
    if source in presets():
        text = (resources.files("dpdt") / "presets" / f"{source}.toml").read_text("utf-8")
    else:
        path = Path(source)
        if not path.is_file():
            raise InputError(
                f"{source}: neither a preset ({', '.join(presets())}) nor a file"
                + _suggest(source, presets())
            )
        try:
            text = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{source}: cannot be read ({error})") from None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{source}: not valid TOML ({error})") from None


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        return text


def _section(name: str, table: Mapping[str, Any]) -> Any:
    kind = SECTIONS[name]
    if name == "method" and (chosen := table.get("name", "dpdt")) in METHODS:
        kind = METHODS[chosen]
    known = {f.name: f for f in fields(kind)}
    values = {}
    for option, value in table.items():
        if option not in known:
            raise InputError(f"{name}.{option}: no such key{_suggest(option, known)}")
        metadata = known[option].metadata
        if not metadata["check"](value):
            if value is None and known[option].default is None:
                continue
            raise InputError(f"{name}.{option}: must be {metadata['text']}, found {value!r}")
        values[option] = tuple(value) if isinstance(value, list) else value
    return kind(**values)


def _suggest(name: str, known: Any) -> str:
    close = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean {close[0]}?" if close else f"; there are {', '.join(sorted(known))}"
