"""A model that can be handed over, and a claim about it that others can check.

A release is a folder: the model, what is needed to rebuild it, a certificate, and a model card.
`verify` needs no torch, and runs nothing that it finds in the folder.

`dpdt.release` is this room, and also the function that makes a release: calling the room calls it.
Otherwise what `dpdt.release` means would depend on what was imported before.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Room(ModuleType):
    def __call__(self, *given: Any, **options: Any) -> Any:
        from dpdt.release.making import release

        return release(*given, **options)


sys.modules[__name__].__class__ = _Room
