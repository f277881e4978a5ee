"""What a model is asked about: numbers, texts or images from files, a few examples at a time.

The end of a file's name says its kind: .csv, .parquet, .npz or .txt; any other file is an image,
and a folder holds images. A model that was trained on a table reads the same columns of a table.
Numbers are taken on the scale that the data set has on disk, and become inputs by the constants of
its training (data/scales.py). What does not fit is refused, and never made to fit, but for one
thing: grey and colour are exchanged where nothing is lost.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from dpdt.data import BYTES, Encoding, Facts, Scale, channels_first, is_table
from dpdt.data.encoding import DROP, REFUSE
from dpdt.data.formats import reading
from dpdt.data.images import square
from dpdt.data.rows import opened
from dpdt.data.sheets import sheet
from dpdt.errors import InputError
from dpdt.releasing import lines

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP")  # none of them runs a program
MODES = ("1", "L", "LA", "P", "RGB", "RGBA")  # of images whose values are bytes

Chunk = tuple[list[str], Any, int]  # names, inputs, how far the reading is


@dataclass(frozen=True, kw_only=True)
class Source:
    """Examples that can be read once."""

    names: str  # what the names of examples are: row or file
    what: str  # is counted while they are read
    total: int
    chunks: Iterator[Chunk]


def source(path: Path, facts: Facts, scale: Scale | Encoding | None, number: int) -> Source:
    """The examples in a file or folder, that many at a time. Texts have no scale."""
    if not path.exists():
        raise InputError(f"{path}: is missing")
    if isinstance(scale, Encoding):
        return _of_table(path, scale, number)
    if path.is_dir():
        return _images(path, sorted(_below(path)), facts, scale, number)
    if not path.is_file():  # a pipe could wait for ever
        raise InputError(f"{path}: is neither a file nor a folder")
    kind, size = path.suffix.lower(), path.stat().st_size
    if kind == ".csv":
        rows = lines.table(path, None if scale is None else prod(facts.shape))
        found = _grouped(path, rows, facts, scale, number)
        return Source(names="row", what="bytes", total=size, chunks=found)
    if kind == ".txt" and scale is None:
        found = _grouped(path, lines.texts(path), facts, scale, number)
        return Source(names="row", what="bytes", total=size, chunks=found)
    if kind == ".npz" and scale is not None:
        with opened(path, ("x", "x_test")) as array:
            total = array.shape[0]
        found = _of_npz(path, facts, scale, number)
        return Source(names="row", what="rows", total=total, chunks=found)
    if kind in (".txt", ".npz"):
        wanted = "texts: a .txt or .csv file" if scale is None else "numbers: a .csv or .npz file"
        raise InputError(f"{path}: the model reads {wanted}")
    return _images(path.parent, [path], facts, scale, number)


def _of_table(path: Path, encoding: Encoding, number: int) -> Source:
    """Rows of a table with the columns that the model was trained on."""
    if not is_table(path.name):
        raise InputError(f"{path}: the model reads a table: a .csv or .parquet file")
    found = sheet(path)
    # no row is left out, which would be a row without an answer
    rule = REFUSE if encoding.missing == DROP else encoding.missing
    read = replace(encoding, missing=rule).reader(found)

    def chunks() -> Iterator[Chunk]:
        first = 1
        while some := list(islice(found.rows, number)):
            names = [str(first + i) for i in range(len(some))]
            yield names, torch.tensor([read(row) for row in some]), some[-1].done
            first += len(some)
        if first == 1:
            raise _empty(path)

    return Source(names="row", what=found.what, total=found.total, chunks=chunks())


def _grouped(
    path: Path, rows: Iterator[lines.Row], facts: Facts, scale: Scale | None, number: int
) -> Iterator[Chunk]:
    """Rows of a text file, that many at a time."""
    first = 1
    while some := list(islice(rows, number)):
        names = [str(first + i) for i in range(len(some))]
        values, done = [row for row, _ in some], some[-1][1]
        if scale is None:
            yield names, values, done
        else:
            x = np.asarray(values, dtype=np.float64).reshape(-1, *facts.shape)
            yield names, _inputs(path, names, x, scale), done
        first += len(some)
    if first == 1:
        raise _empty(path)


def _of_npz(path: Path, facts: Facts, scale: Scale, number: int) -> Iterator[Chunk]:
    """Rows of an array: of the data's shape, flat, or images with their channels last."""
    done = 0
    with opened(path, ("x", "x_test")) as array:
        row = array.shape[1:]
        like = np.broadcast_to(np.zeros((), np.uint8), (1, *row))  # takes no memory
        if row not in (facts.shape, (prod(facts.shape),)) and (
            not row or channels_first(like).shape[1:] != facts.shape
        ):
            raise InputError(
                f"{path}: array {array.name} has rows of shape {row}, and the model reads "
                f"{facts.shape}"
            )
        if not array.shape[0]:
            raise _empty(path)
        for x in array.chunks(number):
            names = [str(done + i + 1) for i in range(len(x))]
            done += len(x)
            whole = x if row == facts.shape else channels_first(x)
            yield names, _inputs(path, names, whole.reshape(-1, *facts.shape), scale), done


def _empty(path: Path) -> InputError:
    return InputError(f"{path}: is empty; it needs at least one example")


def _inputs(path: Path, names: list[str], x: np.ndarray, scale: Scale) -> Tensor:
    """Numbers as the model is shown them, if they are on the scale of its data."""
    with np.errstate(over="ignore", invalid="ignore"):
        single = np.array(x, dtype=np.float32, order="C")  # a copy, to write to
        right = np.isfinite(single)
        if scale.highest is not None:
            right &= (x >= 0) & (x <= scale.highest) & (x == np.trunc(x))
    if not right.all():
        place = tuple(int(i) for i in np.argwhere(~right)[0])
        raise InputError(
            f"{path}: row {names[place[0]]} has {x[place]:g}, and the model reads {scale.words()}"
        )
    return scale.apply(torch.from_numpy(single))


def _below(folder: Path) -> Iterator[Path]:
    """All files in a folder and its folders, but those whose names begin with a dot."""
    for path in folder.iterdir():
        if path.name[0] == ".":
            continue
        if path.is_dir() and not path.is_symlink():  # a link could lead in a circle
            yield from _below(path)
        else:
            yield path


def _images(
    base: Path, paths: list[Path], facts: Facts, scale: Scale | None, number: int
) -> Source:
    where = base if len(paths) != 1 else paths[0]
    if scale is None or len(facts.shape) != 3 or facts.shape[0] not in (1, 3):
        raise InputError(f"{where}: the model reads no images; give a .csv, .npz or .txt file")
    if scale.highest != BYTES.highest:
        raise InputError(
            f"{where}: the model reads {scale.words()}, and pixels of images are from 0 to "
            f"{BYTES.highest}; give a .csv or .npz file"
        )
    if not paths:
        raise _empty(base)

    def chunks(scale: Scale) -> Iterator[Chunk]:
        for start in range(0, len(paths), number):
            some = paths[start : start + number]
            pixels = np.stack([_pixels(path, facts.shape, scale) for path in some])
            names = [path.relative_to(base).as_posix() for path in some]
            yield names, scale.apply(torch.from_numpy(pixels)), start + len(some)

    return Source(names="file", what="images", total=len(paths), chunks=chunks(scale))


def _pixels(path: Path, shape: tuple[int, ...], scale: Scale) -> np.ndarray:
    """An image as bytes of this shape."""
    if not path.is_file():
        raise InputError(f"{path}: is missing, or is no file")
    channels, height, width = shape
    with warnings.catch_warnings(), reading(path):
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            image = Image.open(path, formats=FORMATS)
        except UnidentifiedImageError:
            raise InputError(f"{path}: is no image ({', '.join(FORMATS)})") from None
        with image:
            if scale.crop:
                return square(path, height)
            if image.size != (width, height):
                raise InputError(
                    f"{path}: has {image.size[0]} × {image.size[1]} pixels, and the model reads "
                    f"{width} × {height}"
                )
            if image.mode not in MODES or getattr(image, "n_frames", 1) > 1:
                raise InputError(f"{path}: must be one image of 8 bits a channel, grey or RGB")
            colours = np.array(image.convert("RGBA"))
    if (colours[..., 3] != 255).any():
        raise InputError(f"{path}: is partly transparent, which the model cannot see")
    colours = colours[..., :3].transpose(2, 0, 1)
    if channels == 1 and (colours != colours[:1]).any():
        raise InputError(f"{path}: is in colour, and the model reads grey images")
    return colours[:channels]
