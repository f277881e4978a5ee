"""The features of a frozen part: computed once for every example, and kept on disk.

Guarantees: an example's features are a function of the example and the model, to the bit. They do
not depend on the other examples, their number or their order, nor on the number of cores. Examples
are computed in chunks of a constant number of rows, filled up with copies, each on one core, if all
places of such a chunk give the same result on made-up inputs; otherwise one by one. What is kept is
found again by a hash of everything that features depend on: all examples, the frozen part's tensors
and attributes, its settings, the code that computes, and the versions and processor it runs on.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dpdt.algorithm.batch import Data, tree_map
from dpdt.algorithm.lanes import Lanes, keep_memory, one_core
from dpdt.algorithm.places import Digests, equal_places, made_up
from dpdt.algorithm.state import described, model_hash, replica
from dpdt.data import cache
from dpdt.data.access import count, fingerprint, take
from dpdt.errors import InputError
from dpdt.mechanism import full_precision
from dpdt.models.settings import ModelSettings

IMAGES = 16  # examples of one shape that are computed together: they fit the cache
STEP, TEXTS = 8, 63  # texts are cut to multiples of STEP tokens, and TEXTS computed together
TRIES = 4
# What computes features, besides this folder. A change of any of these files computes them anew.
CODE = (
    "mechanism.py",
    "algorithm/batch.py",
    "algorithm/lanes.py",
    "algorithm/places.py",
    "data/access.py",
)

Watch = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]
Chunk = tuple[Tensor, Data]  # the numbers of its examples, and what the model is shown of them


def silent(what: str, total: int) -> AbstractContextManager[Callable[[int], None]]:
    """A `Watch` that shows nothing."""
    return nullcontext(lambda done: None)


def features_once(
    model: nn.Module, settings: ModelSettings, part: Any, watch: Watch = silent
) -> tuple[Tensor, Tensor]:
    """`features`, computed only if they are not on disk. In float32, whatever is kept there."""
    key = key_of(model, settings, part)
    found = cache.read(key)
    if found is None:
        x, y = features(model, part, watch)
        found = {"features": x, "labels": y}
        cache.write(key, found)
    return found.pop("features").float(), found["labels"]


def learn_once(model: Any, settings: ModelSettings, public: Tensor) -> None:
    """Let the frozen part of a model learn from public inputs, if what it learns is not on disk."""
    key = key_of(model, settings, public)
    found = cache.read(key)
    if found is None:
        model.features.learn_(public)
        cache.write(key, model.features.state_dict())
    else:
        model.features.load_state_dict(found)


def key_of(model: nn.Module, settings: ModelSettings, part: Any) -> str:
    """A hash of everything that features depend on, or what is learnt for them."""
    children = {name: child for name, child in model.named_children() if name != "head"}
    here = Path(__file__).parent
    code = hashlib.sha256()
    for path in sorted([*here.glob("*.py"), *(here.parent / name for name in CODE)]):
        code.update(path.name.encode() + path.read_bytes())
    others = [sys.modules[name] for name in ("transformers", "peft", "timm") if name in sys.modules]
    facts = {
        "examples": fingerprint(part),
        "tensors": model_hash(nn.ModuleDict(children)),
        "attributes": described(model),
        "settings": asdict(settings),
        "code": code.hexdigest(),
        "versions": [f"{m.__name__} {m.__version__}" for m in (torch, *others)],
        "processor": [platform.machine(), torch.backends.cpu.get_cpu_capability()],
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def features(model: Any, part: Any, watch: Watch = silent) -> tuple[Tensor, Tensor]:
    """What the head of a model will see of every example, and the labels."""
    model.eval()
    keep_memory()
    frozen, total, done = _Frozen(model), count(part), 0
    labels: list[Tensor] = []
    texts = isinstance(part, tuple) and isinstance(part[0], Mapping)
    chunks = _of_texts(frozen, *part) if texts else _of_inputs(frozen, part, labels)
    out = None
    with watch(f"features of {total:,} examples", total) as told:
        for chosen, rows in frozen.each(chunks):
            if out is None:
                out = rows.new_empty(total, *rows.shape[1:])
            out[chosen] = rows[: len(chosen)]
            done += len(chosen)
            told(done)
    assert out is not None
    return out, part[1] if texts else torch.cat(labels)


class _Frozen:
    """A model whose features are computed on lanes, each with a copy of it."""

    def __init__(self, model: Any):
        self.model, self.lanes = model, Lanes()
        self.copies: dict[int, Any] = {}

    def each(self, chunks: Iterator[Chunk]) -> Iterator[tuple[Tensor, Tensor]]:
        return self.lanes.map(lambda chunk: (chunk[0], self._compute(chunk[1])), chunks)

    def together(self, like: Data, rows: int, full: Data | None = None) -> bool:
        """Whether that many rows may be computed at once: all places give the same result.

        A model that gives another one every time is refused.
        """

        def compute(some: Data, trial: int) -> list[Tensor]:
            return [self._compute(_with(some, full))[:rows]]

        one = _with(made_up(like, 1, 0), full)
        with one_core():
            if len({Digests.of([self._compute(one)]).rows[0] for _ in range(TRIES)}) > 1:
                raise InputError(
                    "model.name: gives other features of the same input every time, so it draws "
                    "at random in use as well; use another encoder"
                )
            return equal_places(compute, like, 1, rows, TRIES) == 1

    def _compute(self, inputs: Data) -> Tensor:
        """On this thread, in its own modes."""
        lane = threading.get_ident()
        if lane not in self.copies:
            self.copies[lane] = replica(self.model)
        with full_precision(), torch.no_grad():
            answer: Tensor = self.copies[lane].features(inputs)
        return answer


def _of_inputs(frozen: _Frozen, part: Any, labels: list[Tensor]) -> Iterator[Chunk]:
    """Inputs of one shape, in their order. Their labels are collected on the way."""
    rows = IMAGES if frozen.together(take(part, torch.arange(1))[0], IMAGES) else 1
    for chosen in torch.split(torch.arange(count(part)), rows):
        x, y = take(part, chosen)
        labels.append(y)
        yield chosen, torch.cat([x, x[:1].expand(rows - len(x), *x.shape[1:])])


def _of_texts(frozen: _Frozen, tokens: dict[str, Tensor], labels: Tensor) -> Iterator[Chunk]:
    """Texts, length by length. Each is cut to its own length, rounded up."""
    whole = tokens["attention_mask"].shape[1]
    lengths = tokens["attention_mask"].sum(1).clamp_min(1)
    lengths = (-(-lengths // STEP) * STEP).clamp_max(whole)
    for length in sorted(set(lengths.tolist())):
        cut = {name: t[:, :length] for name, t in tokens.items()}
        # one row that is attended to from end to end keeps the model from cutting further
        full = {name: torch.ones_like(t[:1]) for name, t in cut.items()}
        rows = TEXTS if frozen.together(cut, TEXTS, full) else 1
        members = torch.nonzero(lengths == length).squeeze(1)
        for chosen in torch.split(members, rows):
            filled = torch.cat([chosen, chosen[:1].expand(rows - len(chosen))])
            yield chosen, _with({name: t[filled] for name, t in cut.items()}, full)


def _with(some: Data, full: Data | None) -> Data:
    return some if full is None else tree_map(lambda a, b: torch.cat([a, b]), some, full)
