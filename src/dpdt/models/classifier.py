"""A backbone of transformers with a linear head: what is built, trained and released."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor, nn

from dpdt.models.encoders import View, read_off
from dpdt.models.settings import ModelSettings


class Classifier(nn.Module):
    """A backbone, what it says of the whole input, and a linear head on that.

    `pooling` is where the whole is read. Of images: the `first` token, or the mean of all `places`.
    Of texts: the `mean` of all tokens (encoders), or the `last` (causal models). Inputs are images,
    of which the backbone has a `view`, or a mapping of input_ids and attention_mask. `settings` are
    what it was built from.
    """

    def __init__(
        self,
        backbone: nn.Module,
        width: int,
        classes: int,
        pooling: str,
        bias: bool,
        settings: ModelSettings,
        view: View | None = None,
    ):
        super().__init__()
        self.backbone, self.pooling, self.settings = backbone, pooling, settings
        self.view = view
        self.head = nn.Linear(width, classes, bias=bias)

    @property
    def reads_texts(self) -> bool:
        return self.pooling in ("mean", "last")

    def features(self, x: Tensor | Mapping[str, Tensor]) -> Tensor:
        """What the head sees."""
        if not isinstance(x, Mapping):
            shown = x if self.view is None else self.view(x)
            hidden = self.backbone(pixel_values=shown).last_hidden_state
            return read_off(hidden, self.pooling)
        mask = x["attention_mask"]
        # Padding behind the longest text of the micro-batch changes no value, only the time.
        try:
            length = max(1, int(mask.sum(1).max()))
        except RuntimeError:  # mapped over micro-batches, which then have one length
            length = mask.shape[1]
        ids, mask = x["input_ids"][:, :length], mask[:, :length]
        hidden = self.backbone(input_ids=ids, attention_mask=mask).last_hidden_state
        if self.pooling == "mean":
            weights = mask.unsqueeze(-1).to(hidden.dtype)
            return cast(Tensor, (hidden * weights).sum(1) / weights.sum(1).clamp_min(1.0))
        last = (mask.sum(1) - 1).clamp_min(0)
        return cast(Tensor, hidden[torch.arange(len(hidden)), last])

    def forward(self, x: Tensor | Mapping[str, Tensor]) -> Tensor:
        return cast(Tensor, self.head(self.features(x)))
