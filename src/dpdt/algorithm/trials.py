"""Whether taps fit a model: found out on made-up inputs, against gradients of one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import Tensor, nn

from dpdt.algorithm.batch import Data, tree_map
from dpdt.algorithm.gradients import Loss, looped, mappable
from dpdt.algorithm.hearing import Heard, Shape
from dpdt.algorithm.places import made_up, made_up_weights
from dpdt.algorithm.precision import closeness
from dpdt.algorithm.randomness import Globals, Keyed, kept
from dpdt.algorithm.scaled import Scaled
from dpdt.algorithm.taps import Key, Taps

TRIALS = 2


def probe(taps: Taps, model: nn.Module, loss: Loss, like: Data, keyed: Key | None) -> bool:
    """Find out on made-up inputs which layers are called, and which taps are right.

    Raises what vmap raises if the model cannot be mapped. False if nothing could be compared,
    or if gradients that are written out differ too.
    """
    while True:
        taps.names, taps.shapes = _called(taps, model, loss, like, keyed)
        taps.keep(taps.layers.keys() & set(taps.names))
        wrong = _wrong(taps, model, loss, like, keyed)
        if not wrong:
            return wrong is not None
        if not wrong <= taps.layers.keys():  # one call of the model is not like the next
            return False
        taps.keep(taps.layers.keys() - wrong)


def _called(
    taps: Taps, model: nn.Module, loss: Loss, like: Data, keyed: Key | None
) -> tuple[list[str], list[Shape]]:
    """The layers that a model calls, in their order, and the shapes of their outputs.

    RuntimeError if it draws random numbers: so says vmap of such models.
    """
    data, heard = made_up(like, taps.size), Heard()
    pairs = zip(taps.layout.names, taps.layout.tensors, strict=True)
    named = {name: t.detach() for name, t in pairs}
    with kept() as before, mappable(), heard.hooks(model, taps.layers):
        taps.listen(heard, None, model, loss, named, data, _row(keyed, 0))
        drawn = Globals() != before
    if drawn:
        raise RuntimeError("the model draws random numbers, which cannot be mapped")
    return heard.names, heard.shapes


def _row(keyed: Key | None, row: int) -> Key | None:
    return None if keyed is None else (*keyed[:2], keyed[2][row])


def _wrong(
    taps: Taps, model: nn.Module, loss: Loss, like: Data, keyed: Key | None
) -> set[str] | None:
    """The layers whose gradients are not the plain ones; None if none were finite."""
    layout, told, wrong = taps.layout, False, set[str]()
    close = closeness(loss)
    for trial in range(TRIALS):
        data = made_up(like, 2 * taps.size, trial)
        weights = made_up_weights(layout.tensors, trial)
        out = torch.empty(2, layout.size, dtype=layout.dtype, device=layout.device)
        each = [tree_map(lambda t, k=k: t[k * taps.size :][: taps.size], data) for k in range(2)]
        for row, alone in enumerate(each):
            mine = _row(keyed, row)
            with nullcontext() if mine is None else Keyed(*mine):
                looped(model, loss, layout, alone, out[row : row + 1], weights)
        if not bool(torch.isfinite(out).all()):
            continue
        told = True
        found = taps.run(model, loss, data, 2, keyed, weights)
        again = replace(found, calls=dict(found.calls), written=dict(found.written))
        taps.held = sum(t[:1].numel() for t in taps.every(again, Scaled()))
        for row, alone in enumerate(each):
            wrong |= _used_elsewhere(taps, model, loss, alone, _row(keyed, row), weights)
        plain = [dict(zip(layout.names, layout.split(row), strict=True)) for row in out]
        for name, rows in taps.written(found, 2):
            for mine, true in zip(rows, (p[name].double() for p in plain), strict=True):
                if float((mine - true).norm()) > close * float(true.norm()):
                    wrong.add(name.rpartition(".")[0])
    return wrong if told else None


def _used_elsewhere(
    taps: Taps,
    model: nn.Module,
    loss: Loss,
    data: Data,
    keyed: Key | None,
    weights: Sequence[Tensor],
) -> set[str]:
    """The layers whose parameters reach the loss by more than the layers' own calls."""
    names, heard = taps.layout.names, Heard(cut=True)
    leaves = [w.detach().requires_grad_() for w in weights]
    named = dict(zip(names, leaves, strict=True))
    with mappable(), heard.hooks(model, taps.layers), torch.enable_grad():
        value = taps.listen(heard, None, model, loss, named, data, keyed)
        if not value.requires_grad:
            return set()
        gradients = torch.autograd.grad(value, leaves, materialize_grads=True)
    found = {name for name, g in zip(names, gradients, strict=True) if bool(g.any())}
    return {name.rpartition(".")[0] for name in taps.homes if name in found}
