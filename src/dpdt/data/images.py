"""Class folders of images, read when they are asked for."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from dpdt.data import scale
from dpdt.data.formats import Arrays, reading
from dpdt.errors import InputError
from dpdt.reading import opened

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")  # some others start programs
PIXELS = 100_000_000


class ImageFolder(Dataset):  # type: ignore[type-arg]
    """Images in folder/<class>/<image>, as RGB, resized and cropped to side × side.

    Classes are numbered in the order of their names. Images are read when they are asked for.
    `most` limits the number from each class. Links that lead out of the folder are refused, and so
    are images of more pixels than anybody would train on.
    """

    def __init__(self, folder: Path, side: int, most: int | None = None):
        if not folder.is_dir():
            raise InputError(f"{folder}: is missing")
        self.home = folder.resolve()
        classes = sorted(p for p in folder.iterdir() if p.is_dir() and self._inside(p))
        self.side = side
        self.items = [
            (path, number)
            for number, directory in enumerate(classes)
            for path in sorted(p for p in directory.iterdir() if p.is_file() and self._inside(p))[
                :most
            ]
        ]
        if not self.items:
            raise InputError(f"{folder}: has no class folders with images")

    def _inside(self, path: Path) -> bool:
        if path.is_symlink() and not path.resolve().is_relative_to(self.home):
            raise InputError(f"{path}: is a link that leads out of {self.home}; copy what it names")
        return True

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return scale(torch.from_numpy(self.pixels(index))), self.items[index][1]

    def __getitems__(self, indices: list[int]) -> list[tuple[Tensor, int]]:
        """Several images at once. Decoding leaves the interpreter, so threads help."""
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            return list(pool.map(self.__getitem__, indices))

    def arrays(self) -> Arrays:
        """All images at once."""
        images = [self.pixels(i) for i in range(len(self))]
        return np.stack(images), np.asarray([label for _, label in self.items], dtype=np.int64)

    def pixels(self, index: int) -> np.ndarray:
        return square(self.items[index][0], self.side)


def square(path: Path, side: int) -> np.ndarray:
    """An image of any size as RGB, resized and cropped to side × side."""
    with (
        reading(path),
        opened(path) as file,
        Image.open(file, formats=FORMATS) as image,
    ):
        if math.prod(image.size) > PIXELS:
            raise ValueError(f"{image.size[0]} × {image.size[1]} pixels, more than {PIXELS:,}")
        factor = side / min(image.size)
        size = [max(side, round(s * factor)) for s in image.size]
        left, top = (size[0] - side) // 2, (size[1] - side) // 2
        resized = image.convert("RGB").resize((size[0], size[1]))
        cropped = resized.crop((left, top, left + side, top + side))
        return np.array(cropped).transpose(2, 0, 1)


def shaped(folder: Path, shape: tuple[int, ...], most: int) -> Tensor:
    """Some images of class folders, evenly spaced, in the shape of a data set's own."""
    found = ImageFolder(folder, max(shape[1:]))
    number = min(most, len(found))
    pixels = np.stack([found.pixels(i * len(found) // number) for i in range(number)])
    images = scale(torch.from_numpy(pixels))[:, :, : shape[1], : shape[2]]
    return images if shape[0] == 3 else images.mean(1, keepdim=True).expand(-1, shape[0], -1, -1)
