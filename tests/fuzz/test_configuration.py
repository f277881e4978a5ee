"""Configurations: any tree of TOML, any value for any key, any --set."""

import math
import warnings
from dataclasses import fields

import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from dpdt import config
from dpdt.accounting import account
from dpdt.config.sections import SECTIONS
from dpdt.errors import InputError
from dpdt.methods import METHODS

from . import fuzz, one_sentence

words = st.sampled_from(
    ["auto", "paper", "langevin", "constant", "shared", "none", "auxiliary", "poisson", "partition",
     "per-example", "public", "adam", "l1", "mlp", "cnn", "resnet18", "vit-small", "digits",
     "digits-images", "user", "shard", "last", "dpsgd", "gep", "pate", "plain", "replace-one",
     "add-remove", "hidden-state-convex", "", "nan", "../x.npz", "gradient", "\udcff", "ε\x00"]
)  # fmt: skip
numbers = st.one_of(
    st.integers(-3, 300),
    st.sampled_from([2**31, 2**63, 10**18, 10**30, 10**400, -(10**400), True, False]),
    st.floats(0, 10),
    st.floats(),
    st.sampled_from([1e-5, 0.1, 1.0, 1e-300, 5e-324, 1e300, math.inf, math.nan]),
)
schedules = st.builds(
    lambda kind, rest: {"kind": kind, **rest},
    st.sampled_from(["constant", "steps", "exponential", "two-phase", "paper"]) | numbers,
    st.dictionaries(
        st.sampled_from(
            ["rate", "every", "floor", "ceiling", "epochs", "factors", "low", "ramp", "unit",
             "over", "phases", "start", "stop", "value"]
        ),
        numbers | st.lists(numbers, max_size=3) | st.just("step"),
        max_size=4,
    ),
)  # fmt: skip
leaves = st.one_of(words, numbers, st.text(max_size=5), st.dates(), st.times(), schedules)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(words | st.text(), inner, max_size=3)
    ),
    max_leaves=6,
)
KEYS = {name: [f.name for f in fields(kind)] for name, kind in SECTIONS.items() if name != "method"}
KEYS["method"] = sorted({f.name for kind in METHODS.values() for f in fields(kind)})
pairs = st.sampled_from([(section, key) for section, keys in KEYS.items() for key in keys])
sane = {  # values with which plans are reached more often than refused
    "method.name": st.sampled_from(sorted(METHODS)),
    "method.lr": st.floats(0.01, 1),
    "method.noise": st.floats(0.1, 2),
    "method.penalty": st.floats(0.1, 2),
    "method.clip": st.floats(0.1, 2),
    "method.sampling": st.sampled_from(["partition", "poisson"]),
    "method.auxiliaries": st.integers(1, 20) | st.just("per-example"),
    "train.batch_size": st.integers(20, 500),
    "train.epochs": st.integers(1, 50),
    "data.public": st.integers(0, 100),
}


@st.composite
def trees(draw):
    tree = {}
    for key in draw(st.sets(st.sampled_from(sorted(sane)), max_size=8)):
        section, name = key.split(".")
        tree.setdefault(section, {})[name] = draw(sane[key])
    for section, name in draw(st.lists(pairs, max_size=3)):
        tree.setdefault(section, {})[name] = draw(values)
    if draw(st.integers(0, 99)) == 50:
        tree[draw(words)] = draw(values)
    if draw(st.integers(0, 99)) == 50:
        tree["peers"] = draw(st.dictionaries(st.sampled_from(sorted(METHODS)), values) | values)
    return tree


def planned(source, overrides=()):
    """A configuration goes to its plan and its ε, or is refused in one sentence."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            chosen = config.load(source, overrides)
            tomli_w.dumps(chosen.as_tables()).encode()  # as a run's folder keeps it
            plan = config.plan_of(chosen)
            if plan.header.sampling == "poisson" and plan.header.rate < 1.0:
                return  # distributions take seconds, and meet numbers that were checked before
            found = account(plan.ledger(), chosen.privacy.delta, allow_large_delta=True)
    except InputError as error:
        one_sentence(error)
        return
    assert found.epsilon >= 0.0
    assert plan.ledger().steps == plan.steps


@fuzz
@given(tree=trees())
def test_trees(tree, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "fuzzed.toml"
    try:
        text = tomli_w.dumps(tree)
        path.write_text(text, "utf-8")
    except (TypeError, ValueError, UnicodeError):
        return  # no TOML
    planned(str(path))


@fuzz
@given(raw=st.binary(max_size=60) | st.text(max_size=60).map(lambda t: t.encode("utf-8", "ignore")))
def test_bytes(raw, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "bytes.toml"
    path.write_bytes(raw)
    planned(str(path))


texts = st.one_of(
    values.map(repr),
    st.text(max_size=20),
    st.sampled_from(
        [
            "[" * 5000,
            "9" * 5000,
            "0x" + "f" * 5000,
            "1\n[train]\nepochs=2",
            '{a={b={c="d"}}}',
            "0x10",
            "1e999",
        ]
    ),
)


@fuzz
@given(
    pairs=st.lists(
        st.tuples(pairs.map(".".join) | st.text(max_size=10), st.sampled_from("= "), texts),
        max_size=4,
    )
)
def test_overrides(pairs):
    planned("digits", tuple("".join(parts) for parts in pairs))


BASES = [
    {"name": "dpdt", "sampling": "partition", "preconditioner": "identity", "lr": 0.1,
     "penalty": 1.0, "noise": 0.5, "auxiliaries": 4},
    {"name": "dpdt", "noise": 0.5},
    {"name": "dpsgd", "noise": 0.5},
    {"name": "gep", "noise": 0.5},
    {"name": "pate", "noise": 0.5},
    {"name": "plain"},
]  # fmt: skip
extreme = st.sampled_from([5e-324, 1e-300, 1e-100, 1e-30, 1e30, 1e100, 1e154, 1e200, 1e308])
number = st.floats(0, 10) | extreme | st.integers(0, 10) | st.sampled_from([10**9, 2**63 - 1])
epoch = st.integers(0, 30) | st.sampled_from([10**9, 2**63 - 1])
plausible = st.one_of(
    st.builds(
        lambda at, factors: {"kind": "steps", "epochs": at, "factors": factors[: len(at) + 1]},
        st.lists(epoch, max_size=3, unique=True).map(sorted),
        st.lists(number, min_size=4, max_size=4),
    ),
    st.fixed_dictionaries(
        {"kind": st.just("exponential"), "rate": number, "every": epoch},
        optional={"floor": number, "ceiling": number},
    ),
    st.fixed_dictionaries(
        {"kind": st.just("two-phase"), "low": number, "ramp": st.lists(epoch, max_size=3)}
    ),
    st.fixed_dictionaries({"kind": st.just("paper"), "over": epoch}),
    st.sampled_from(["paper", "paper-decay", "langevin", "constant"]),
)


@st.composite
def nearly_right(draw):
    """A configuration that is right, but for a few values that are right by their type."""
    method = dict(draw(st.sampled_from(BASES)))
    tree = {"method": method, "train": {"epochs": 3, "batch_size": 100}, "data": {"public": 50}}
    for section, name in draw(st.lists(pairs, min_size=1, max_size=3)):
        if section == "method" and name == "name":
            continue
        if name.endswith("schedule"):
            value = draw(plausible)
        else:
            like = {f.name: f for f in fields(METHODS[method["name"]])}.get(name)
            word = isinstance(like.default if like else None, str)
            value = draw((words | number) if word else number | values)
        tree.setdefault(section, {})[name] = value
    return tree


@fuzz
@given(tree=nearly_right())
def test_nearly_right(tree, tmp_path_factory):
    test_trees.hypothesis.inner_test(tree, tmp_path_factory)
