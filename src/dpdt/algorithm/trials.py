"""Whether taps fit a model: found out on made-up inputs, against gradients without taps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.func import vmap

from dpdt.algorithm.batch import Data, tree_map
from dpdt.algorithm.gradients import Loss, differentiated, mappable, single, vectorised
from dpdt.algorithm.hearing import Heard, Shape
from dpdt.algorithm.places import made_up, made_up_weights
from dpdt.algorithm.precision import Lowered, closeness
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
    """The layers that a model calls when it is mapped, in order, and their outputs' shapes."""
    data, heard = made_up(like, taps.size), Heard()
    pairs = zip(taps.layout.names, taps.layout.tensors, strict=True)
    named = {name: t.detach() for name, t in pairs}
    one = tree_map(lambda t: t.unsqueeze(0), (data, keyed[2][0]) if keyed else (data,))

    def local(given: dict[str, Tensor], examples: Data, *key: Tensor) -> tuple[Tensor, Tensor]:
        mine = None if keyed is None else (*keyed[:2], key[0])
        value = taps.listen(heard, None, model, loss, given, examples, mine)
        return value, value

    with mappable(), heard.hooks(model, taps.layers):
        vmap(
            lambda *rest: (
                differentiated(lambda given: local(given, *rest), named)
                if isinstance(loss, Lowered)  # autocast sees more where something is differentiated
                else local(named, *rest)
            ),
            randomness="error",
        )(*one)
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
        _write_out(taps, model, loss, data, keyed, weights, out)
        if not bool(torch.isfinite(out).all()):
            continue
        told = True
        found = taps.run(model, loss, data, 2, keyed, weights)
        again = replace(found, calls=dict(found.calls), written=dict(found.written))
        taps.held = sum(t[:1].numel() for t in taps.every(again, Scaled()))
        for row in range(2):
            alone = tree_map(lambda t, k=row: t[k * taps.size :][: taps.size], data)
            wrong |= _used_elsewhere(taps, model, loss, alone, _row(keyed, row), weights)
        plain = [dict(zip(layout.names, layout.split(row), strict=True)) for row in out]
        for name, rows in taps.written(found, 2):
            for mine, true in zip(rows, (p[name].double() for p in plain), strict=True):
                if float((mine - true).norm()) > close * float(true.norm()):
                    wrong.add(name.rpartition(".")[0])
    return wrong if told else None


def _write_out(
    taps: Taps,
    model: nn.Module,
    loss: Loss,
    data: Data,
    keyed: Key | None,
    weights: Sequence[Tensor],
    out: Tensor,
) -> None:
    """The gradients of a few micro-batches, mapped and without taps: a backward pass for each."""
    layout = taps.layout
    if isinstance(loss, Lowered):
        vectorised(model, loss, layout, data, out, taps.size, keyed, weights)
        return
    leaves = [w.detach().requires_grad_() for w in weights]
    named = dict(zip(layout.names, leaves, strict=True))
    keys = keyed[2] if keyed else torch.zeros(len(out), dtype=torch.int64, device=layout.place)
    split = tree_map(lambda t: torch.unflatten(t, 0, (len(out), taps.size)), data)

    def local(examples: Data, key: Tensor) -> Tensor:
        mine = None if keyed is None else (*keyed[:2], key)
        return taps.listen(Heard(), None, model, loss, named, examples, mine)

    with mappable(), torch.enable_grad():
        losses = vmap(local, randomness="error")(split, keys)
        single(losses, 1)
        for value, row in zip(losses, out, strict=True):
            found = torch.autograd.grad(value, leaves, retain_graph=True, materialize_grads=True)
            row.copy_(layout.join([g.unsqueeze(0) for g in found])[0])


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
