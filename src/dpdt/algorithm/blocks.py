"""Which parameters are clipped together.

A *block* is a set of trained tensors: the unit of clipping and noise. A *kind* is what sort of
layer a tensor belongs to.

Guarantees: the blocks are an exact partition of everything that is trained. A tied weight stands in
one block, a frozen parameter in none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dpdt.errors import InputError, meant
from dpdt.ledger import Block

KINDS = ("conv", "linear", "norm", "embedding", "other")
GRANULARITIES = ("layer", "tensor", "kind", "model")


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """One trained tensor: its name, the layer that owns it, the layer's kind, its size."""

    name: str
    layer: str
    kind: str
    size: int


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """Blocks in their order in the flat buffers, with the names of the tensors in each."""

    blocks: tuple[Block, ...]
    members: tuple[tuple[str, ...], ...]

    @classmethod
    def group(cls, parameters: Iterable[Parameter], granularity: str) -> Blocks:
        """Group tensors into blocks: by layer, by tensor, by kind, or all in one."""
        groups: dict[str, list[Parameter]] = {}
        for parameter in parameters:
            name = {
                "layer": parameter.layer,
                "tensor": parameter.name,
                "kind": parameter.kind,
                "model": "model",
            }[granularity]
            groups.setdefault(name, []).append(parameter)
        if not groups:
            raise InputError("the model has no trained parameter: every one is frozen")
        entries = []
        for name, members in groups.items():
            kinds = {p.kind for p in members}
            kind = kinds.pop() if len(kinds) == 1 else "other"
            block = Block(name=name, kind=kind, size=sum(p.size for p in members))
            entries.append((block, tuple(p.name for p in members)))
        return cls(blocks=tuple(e[0] for e in entries), members=tuple(e[1] for e in entries))

    def expand(self, value: float | Mapping[str, float], key: str) -> tuple[float, ...]:
        """One number for each block, from a number or from a table by kind and block name.

        A block's own name wins over its kind. `key` names the value in errors.
        """
        if not isinstance(value, Mapping):
            return (float(value),) * len(self.blocks)
        known = {b.name for b in self.blocks} | {b.kind for b in self.blocks}
        for name in value:
            if name not in known and name not in KINDS:
                raise InputError(
                    f"{key}.{name}: neither a kind ({', '.join(KINDS)}) nor a block of this model; "
                    f"its blocks are {_shorten([b.name for b in self.blocks])}"
                    f"{meant(name, (*KINDS, *sorted(known)))}"
                )
        result = []
        for block in self.blocks:
            found = value.get(block.name, value.get(block.kind))
            if found is None:
                raise InputError(
                    f"{key}: no value for block {block.name!r} of kind {block.kind!r}; "
                    f"add {block.kind} = …"
                )
            result.append(float(found))
        return tuple(result)


def _shorten(names: Sequence[str]) -> str:
    shown = ", ".join(names[:6])
    return shown + (f", … ({len(names)} in all)" if len(names) > 6 else "")
