"""A model in plain values, as config.json of a release holds it: writer and reader.

`describe` writes and `read` checks these fields; `rebuild` makes the model again, without weights.

format    1; a newer one is refused
dpdt      the version that wrote it
model     the section [model], or null for a model of one's own. A model that was read from a folder
          is called "transformers", and the path is left out
class     the model's class, for people; no code is found by it
backbone  the architecture of a model that was read from a folder, as transformers describes it;
          its tokenizer lies in transformers/ beside config.json. For images there is a `view`: what
          the encoder is shown (models/encoders.py). null for other models
facts     shape of an input, number of classes, whether inputs are texts, name of the data set, and
          the task that it is made for; null where nobody knows, or the name would be a path
inputs    how numbers become inputs, as in data/scales.py, or columns of a table, as in
          data/encoding.py; null for texts and models of one's own
labels    what the classes are called, or null: they are numbers
trained   names and shapes of what was trained
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpdt import __version__, data, models
from dpdt.config import Config
from dpdt.config.tables import section
from dpdt.data import Encoding, Facts, Scale
from dpdt.errors import InputError
from dpdt.fields import is_integer, is_number
from dpdt.tasks import SERVES, Task, task_of

if TYPE_CHECKING:
    from torch import nn

FORMAT = 1
FILE, TRANSFORMERS = "config.json", "transformers"
LARGEST = 10_000_000  # bytes
MOST = 1000  # layers of a model that says so in one number
MANY = re.compile("layer|depth|block|stage|repeat")  # keys that say how often something is built
# Where libraries would look for a model on a disk, or ask a hub; timm's own name of a model.
PLACES, ARCHITECTURE = ("backbone", "checkpoint_path", "model_args"), "architecture"
FACTS = ("shape", "classes", "text", "name", "task")
KEYS = ("format", "dpdt", "model", "class", "backbone", "facts", "inputs", "labels", "trained")


def describe(
    model: nn.Module, config: Config | None = None, labels: list[str] | None = None
) -> dict[str, Any]:
    """A model in plain values. Without a configuration it is one of the user's own.

    `labels` are what its classes are called, if the data set does not say so.
    """
    kind = type(model)
    found: dict[str, Any] = {
        "format": FORMAT,
        "dpdt": __version__,
        "model": None,
        "class": f"{kind.__module__}.{kind.__qualname__}",
        "backbone": None,
        "facts": dict.fromkeys(FACTS),
        "inputs": None,
        "labels": labels,
        "trained": {n: list(p.shape) for n, p in model.named_parameters() if p.requires_grad},
    }
    if config is None:
        return found
    name, known = config.data.name, data.DATA.get(config.data.name)
    facts, table = config.data.facts(), config.data.table
    settings = asdict(replace(config.model, tokenizer=None, dictionary_from=None))  # paths
    if not models.by_name(config.model):
        from dpdt.models.pretrained import architecture

        settings["name"], found["backbone"] = TRANSFORMERS, architecture(model)
    found["model"] = {k: list(v) if isinstance(v, tuple) else v for k, v in settings.items()}
    found["facts"] = {
        "shape": list(facts.shape),
        "classes": facts.classes,
        "text": facts.text,
        "name": name if known else None,
        "task": facts.task,
    }
    scale = None if facts.text else data.scale_of(name, table)
    found["inputs"] = scale.as_json() if isinstance(scale, Encoding) else scale and asdict(scale)
    called = table.labels if table else known.labels if known else None
    if called and labels is None:
        found["labels"] = list(called)
    return found


@dataclass(frozen=True, kw_only=True)
class Description:
    """What `describe` wrote, checked."""

    kind: str  # the model's class
    model: Mapping[str, Any] | None = None  # and all that follows: one of the user's own
    backbone: Mapping[str, Any] | None = None
    facts: Facts | None = None
    scale: Scale | Encoding | None = None
    labels: tuple[str, ...] | None = None

    @property
    def task(self) -> tuple[Task, int]:
        """What a known model was trained for, and how many outputs it has."""
        assert self.model is not None
        assert self.facts is not None
        chosen = section("model", self.model).task
        return task_of(chosen, self.facts.task, self.facts.classes)

    @classmethod
    def of(cls, found: Any, where: str) -> Description:
        """From plain values; `where` is the file that errors name."""
        try:
            return cls._of(found)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None

    @classmethod
    def _of(cls, found: Any) -> Description:
        found = _table(found, "the whole")
        version = found.get("format")
        if not is_integer(version) or version < 1:
            raise InputError(f"format: must be a whole number from 1, found {version!r}")
        if version > FORMAT:
            raise InputError(
                f"format: {version} is newer than {FORMAT}, the newest that dpdt {__version__} "
                "knows; use a newer dpdt"
            )
        if set(found) != set(KEYS):
            raise InputError(f"must have the keys {', '.join(KEYS)}, found {', '.join(found)}")
        if not isinstance(found["class"], str):
            raise InputError(f"class: must be a name, found {found['class']!r:.50}")
        if not all(map(_is_shape, _table(found["trained"], "trained").values())):
            raise InputError("trained: must be names with shapes")
        known = _table(found["facts"], "facts")
        if set(known) != set(FACTS):
            raise InputError(f"facts: must have the keys {', '.join(FACTS)}")
        if found["model"] is None:
            if any(value is not None for value in known.values()):
                raise InputError("facts: must be null for a model of one's own")
            return cls(kind=found["class"])
        facts, settings = _facts(known), _table(found["model"], "model")
        if not isinstance(settings.get("name"), str):
            raise InputError(f"model.name: must be a name, found {settings.get('name')!r:.50}")
        task_of(settings.get("task"), facts.task, facts.classes)  # refused if it does not fit
        scale, labels, backbone = found["inputs"], found["labels"], found["backbone"]
        if (scale is None) != facts.text:
            raise InputError("inputs: must be null exactly where inputs are texts")
        if labels is not None and not (
            isinstance(labels, list)
            and len(labels) == facts.classes
            and all(isinstance(x, str) for x in labels)
        ):
            raise InputError(f"labels: must be null, or {facts.classes} names")
        return cls(
            kind=found["class"],
            model=settings,
            backbone=None if backbone is None else _table(backbone, "backbone"),
            facts=facts,
            scale=None if scale is None else _scale(_table(scale, "inputs"), facts),
            labels=None if labels is None else tuple(labels),
        )


def _table(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{what}: must be a table, found {value!r:.50}")
    return value


def _is_shape(value: Any) -> bool:
    if not isinstance(value, list) or len(value) > 64:
        return False
    return all(is_integer(n) and 0 <= n < 1 << 62 for n in value)


def _facts(table: Mapping[str, Any]) -> Facts:
    shape, classes, text = (table.get(key, ()) for key in ("shape", "classes", "text"))
    if not isinstance(shape, list) or not all(is_integer(n) and n > 0 for n in shape):
        raise InputError(f"facts.shape: must be whole numbers from 1, found {shape!r:.50}")
    if not is_integer(classes) or classes < 1:
        raise InputError(f"facts.classes: must be a whole number from 1, found {classes!r:.50}")
    if not isinstance(text, bool) or text == bool(shape):
        raise InputError("facts.text: must be true exactly where inputs have no shape")
    task = table["task"]
    if not isinstance(task, str) or task not in SERVES:
        raise InputError(f"facts.task: must be {', '.join(SERVES)}, found {task!r:.50}")
    return Facts(examples=1, shape=tuple(shape), classes=classes, text=text, task=task)


def _scale(table: Mapping[str, Any], facts: Facts) -> Scale | Encoding:
    if "columns" in table:
        encoding = Encoding.of_json(table)
        if (encoding.width,) != facts.shape:
            raise InputError(f"inputs: become {encoding.width} numbers, and shape is {facts.shape}")
        return encoding
    names = [f.name for f in fields(Scale)]
    if sorted(table) != sorted(names):
        raise InputError(f"inputs: must have the keys {', '.join(names)}")
    found = Scale(**table)
    if not (is_number(found.divide) and found.divide and is_number(found.subtract)):
        raise InputError("inputs: must have numbers for divide, which is not 0, and subtract")
    if not isinstance(found.crop, bool) or not (found.highest is None or is_integer(found.highest)):
        raise InputError("inputs: must have true or false for crop, a whole number for highest")
    return found


def read(path: Path) -> Description:
    """The description in a file."""
    text = small(path)
    try:
        found = json.loads(text)
        json.dumps(found, ensure_ascii=False).encode("utf-8", "surrogateescape")  # can be written
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: is no JSON ({error})") from None
    return Description.of(found, str(path))


def small(path: Path) -> str:
    """The text of a plain file that is not too large to be what it should be."""
    if not path.is_file():  # no pipe, which would wait for ever
        raise InputError(f"{path}: is missing, or is no file")
    if path.stat().st_size > LARGEST:
        raise InputError(f"{path}: is larger than {LARGEST} bytes")
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error})") from None


def rebuild(found: Description, folder: Path) -> nn.Module:
    """The model of a release in this folder, without its weights."""
    assert found.model is not None
    assert found.facts is not None
    settings = section("model", found.model)
    if settings.layers is not None and settings.layers > MOST:
        raise InputError(f"model.layers: must be at most {MOST}, found {settings.layers}")
    if settings.name != TRANSFORMERS:
        if not models.by_name(settings):
            raise InputError(f"model.name: {settings.name!r:.50} is not known")
        return models.build(settings, found.facts, 0)
    from dpdt.models import pretrained

    architecture = _table(found.backbone, "backbone")
    _refuse_strange(architecture)
    settings = replace(settings, tokenizer=str(folder / TRANSFORMERS))
    return pretrained.rebuild(architecture, settings, found.facts)


def _refuse_strange(values: Any, name: str = "") -> None:
    """Refuse what would take for ever to build, or name a place, wherever it stands."""
    parts = values.items() if isinstance(values, Mapping) else ((name, v) for v in values)
    for key, value in parts:
        if isinstance(value, Mapping | list):
            _refuse_strange(value, str(key))
        elif MANY.search(str(key)) and isinstance(value, int) and value > MOST:  # of any size
            raise InputError(f"backbone.{key}: must be at most {MOST}, found {value!r:.50}")
        elif isinstance(value, str) and (
            name in PLACES or key in PLACES or (key == ARCHITECTURE and not value.isidentifier())
        ):
            raise InputError(f"backbone.{key}: may name no place, found {value!r:.50}")
