"""What a model says of examples, as a CSV with a row for each.

Of classes these are the class, and the probability of every one; of labels the probability of each;
of a regression the numbers.

Guarantees: the file appears as a whole or not at all, whatever happens. Examples are read, asked
about and written a few at a time.
"""

from __future__ import annotations

import csv
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any, TextIO, TypeGuard

import torch
from torch import Tensor, nn

from dpdt.data import Encoding
from dpdt.errors import InputError
from dpdt.mechanism import full_precision
from dpdt.models.classifier import Classifier
from dpdt.models.frozen import Watch, silent
from dpdt.models.pretrained import tokenizer, tokens
from dpdt.releasing.inputs import Source, source
from dpdt.releasing.loading import Loaded
from dpdt.releasing.tokens import Tokenizer
from dpdt.tasks import Task

# Names of files may hold bytes that are no text; they are written as they are.
TEXT: dict[str, Any] = {"encoding": "utf-8", "errors": "surrogateescape", "newline": ""}


def predict(
    loaded: Loaded,
    examples: Path,
    to: IO[bytes] | Path,
    *,
    probabilities: bool = True,
    batch_size: int = 256,
    watch: Watch = silent,
) -> None:
    """Write what a model says of the examples in a file or folder, to a new file or a stream."""
    said = loaded.description
    if said.facts is None:
        raise InputError(
            f"{said.kind}: is a class of its author's own, and only Python can build one; "
            "use dpdt.load(folder, model)"
        )
    labels = said.labels or tuple(map(str, range(said.facts.classes)))
    task, outputs = said.task
    try:
        found = source(examples, said.facts, said.scale, batch_size)
    except OSError as error:
        raise InputError(f"{examples}: cannot be read ({error.strerror})") from None
    with _whole(to) as file, watch(found.what, found.total) as told:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([found.names, *_columns(task, outputs, labels, probabilities)])
        for names, scores, done in _answers(loaded, found):
            if isinstance(said.scale, Encoding):
                scores = said.scale.said(scores)
            for name, row in zip(names, _rows(task, labels, scores, probabilities), strict=True):
                writer.writerow([name, *row])
            told(done)


def _columns(task: Task, outputs: int, labels: tuple[str, ...], probabilities: bool) -> list[str]:
    """What is said of an example."""
    if task.name == "regression":
        return ["value"] if outputs == 1 else [f"value {x}" for x in range(outputs)]
    shown = [f"probability {x}" for x in labels] if probabilities else []
    return ["class", *shown] if task.classes else [f"probability {x}" for x in labels]


def _rows(
    task: Task, labels: tuple[str, ...], scores: Tensor, probabilities: bool
) -> list[list[str]]:
    """The same for every row of scores."""
    scores = scores.double()
    if task.name == "regression":
        return [[f"{value:.6g}" for value in row] for row in scores.tolist()]
    if task.name == "multi-label":
        return [[f"{p:.6g}" for p in row] for row in scores.sigmoid().tolist()]
    if task.name == "binary":
        scores = torch.cat([torch.zeros_like(scores), scores], 1)
    best, chances = scores.argmax(1).tolist(), scores.softmax(1).tolist()
    shown = len(labels) if probabilities else 0
    return [
        [labels[chosen], *(f"{p:.6g}" for p in row[:shown])]
        for chosen, row in zip(best, chances, strict=True)
    ]


def _answers(loaded: Loaded, found: Source) -> Iterator[tuple[list[str], Tensor, int]]:
    """Names and scores of the examples, and how far the reading is."""
    as_inputs = _tokenizer(loaded)
    for names, x, done in found.chunks:
        scores = _scores(loaded, as_inputs(x))
        finite = scores.isfinite().all(1).tolist()
        if False in finite:
            name = names[finite.index(False)]
            raise InputError(f"{found.names} {name}: the model's answer is not finite")
        yield names, scores, done


def _tokenizer(loaded: Loaded) -> Callable[[Any], Any]:
    """What makes inputs of what was read: tokens of texts, and numbers as they are."""
    model = loaded.model
    if not _reads_texts(model):
        return lambda x: x
    if not loaded.released:  # the folder that the user has trained from
        return partial(tokens, tokenizer(model.settings), length=model.settings.length)
    backbone: Any = model.backbone
    known = backbone.get_input_embeddings().num_embeddings
    return Tokenizer(loaded.folder, model.settings.length, known)


def _scores(loaded: Loaded, inputs: Any) -> Tensor:
    """What the model says. Strange values in a release may fail only here."""
    try:
        with full_precision(), torch.no_grad():
            scores: Tensor = loaded.model(inputs)
    except Exception as error:
        if not loaded.released:
            raise
        said = f"{type(error).__name__}: {error}".split("\n")[0][:200]
        raise InputError(f"{loaded.folder}: its model gives no answer ({said})") from None
    return scores


def _reads_texts(model: nn.Module) -> TypeGuard[Classifier]:
    return isinstance(model, Classifier) and model.reads_texts


def _whole(to: IO[bytes] | Path) -> AbstractContextManager[TextIO]:
    return _file(to) if isinstance(to, Path) else _stream(to)


@contextmanager
def _file(path: Path) -> Iterator[TextIO]:
    """A text file that appears under its name when all is written."""
    if os.path.lexists(path):
        raise InputError(f"{path}: already exists; choose a new name")
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(part, "x", **TEXT) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from None
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def _stream(stream: IO[bytes]) -> Iterator[TextIO]:
    """A text file that goes to a stream when all is written."""
    try:
        with tempfile.TemporaryFile("w+", **TEXT) as file:
            yield file
            file.seek(0)
            shutil.copyfileobj(file.buffer, stream)
            stream.flush()
    except OSError as error:
        raise InputError(f"the output cannot be written ({error.strerror})") from None
