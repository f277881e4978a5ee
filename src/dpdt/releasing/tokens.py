"""The tokenizer of a release, from the text of two files in its folder and from nothing else.

transformers' own reader follows what tokenizer_config.json names: other files, also elsewhere on
the disk, and classes. Here tokenizer.json alone says how texts are cut. Of tokenizer_config.json
only the token to pad with counts, and at which end long texts are cut. Texts are padded on the
right, as in training, though no further than the longest of them: the length that a release says
may be any, and padding is what the model does not see.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dpdt.errors import InputError
from dpdt.releasing import inside
from dpdt.releasing.description import TRANSFORMERS

WORDS, SETTINGS = f"{TRANSFORMERS}/tokenizer.json", f"{TRANSFORMERS}/tokenizer_config.json"
MOST = 100_000_000  # bytes of either
SIDES = ("left", "right")


class Tokenizer:
    """Cuts texts into tokens of a model that knows `vocabulary` of them."""

    def __init__(self, folder: Path, length: int, vocabulary: int):
        self.path, self.length, self.vocabulary = folder / WORDS, length, vocabulary
        text, settings = inside.text(folder, WORDS, MOST), _settings(folder)
        side = settings.get("truncation_side", "right")
        if side not in SIDES:
            raise InputError(
                f"{folder / SETTINGS}: truncation_side must be left or right, found {side!r:.50}"
            )
        self._by = self._asked(_read, text)
        if not self._asked(self._by.get_vocab_size, with_added_tokens=False):
            raise InputError(f"{self.path}: has no vocabulary, so every text would be the same")
        pad = settings.get("pad_token")
        pad = pad.get("content") if isinstance(pad, dict) else pad
        number = self._asked(self._by.token_to_id, pad) if isinstance(pad, str) else None
        if number is None:
            raise InputError(
                f"{folder / SETTINGS}: pad_token must be a token of tokenizer.json, found "
                f"{pad!r:.50}"
            )
        self._asked(self._by.enable_truncation, length, direction=side)
        self._asked(self._by.no_padding)
        self.pad = int(number)

    def __call__(self, texts: list[str]) -> Mapping[str, Tensor]:
        """Texts as tokens, cut to the length that the model was trained with."""
        ids = [one.ids for one in self._asked(self._by.encode_batch, texts)]
        if (longest := max(map(len, ids), default=0)) > self.length:
            raise InputError(f"{self.path}: does not cut texts to {self.length} tokens")
        padded = torch.full((len(ids), max(1, longest)), self.pad)
        mask = torch.zeros_like(padded)
        for row, found in enumerate(ids):
            padded[row, : len(found)] = torch.tensor(found, dtype=torch.long)
            mask[row, : len(found)] = 1
        if (most := int(padded.max())) >= self.vocabulary:
            raise InputError(
                f"{self.path}: has a token of number {most}, and the model knows {self.vocabulary}"
            )
        return {"input_ids": padded, "attention_mask": mask}

    def _asked(self, function: Any, *given: Any, **more: Any) -> Any:
        """What the library returns. Wrong values can fail anywhere in it, and make it panic."""
        try:
            return function(*given, **more)
        except BaseException as error:
            if isinstance(error, Exception) or type(error).__name__ == "PanicException":
                said = " ".join(str(error).split())[:200]
                raise InputError(f"{self.path}: is no tokenizer that works ({said})") from None
            raise


def _read(text: str) -> Any:
    from tokenizers import Tokenizer as Library

    return Library.from_str(text)


def _settings(folder: Path) -> dict[str, Any]:
    text = inside.text(folder, SETTINGS, MOST)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{folder / SETTINGS}: is no JSON ({error!s:.100})") from None
    if not isinstance(found, dict):
        raise InputError(f"{folder / SETTINGS}: must be a table, found {found!r:.50}")
    return found
