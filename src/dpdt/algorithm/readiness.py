"""Which models can be trained privately, and how to make others ready.

Some layers mix examples (BatchNorm) or keep running statistics. Through such a layer a record
reaches the result past the norm bound and the noise. So these layers are refused, with the reason.
`make_private_ready` replaces the usual ones.
"""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from dpdt.algorithm.reachable import Snapshot
from dpdt.errors import InputError


def _problem(module: nn.Module) -> str | None:
    if isinstance(module, _BatchNorm):
        return "normalises each example with the others of its batch"
    if isinstance(module, _InstanceNorm) and module.track_running_stats:
        return "keeps running statistics of the data"
    if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None:
        return "writes to its own weights in every forward pass (max_norm)"
    hooks = [type(h).__name__ for h in module._forward_pre_hooks.values()]
    parametrized = [type(p).__name__ for n, p in module.named_modules() if n.endswith(".0")]
    if "SpectralNorm" in hooks or "_SpectralNorm" in parametrized:
        return "updates an estimate in every forward pass"
    return None


def refuse_unready(model: nn.Module) -> None:
    """Raise an InputError that names the first layer that cannot be trained privately, and why."""
    known = {id(module) for module in model.modules()}
    seen = Snapshot({"": model}).seen.values()
    hidden = [m for m in seen if isinstance(m, nn.Module) and id(m) not in known]
    for name, module in (*model.named_modules(), *(("in a plain list", m) for m in hidden)):
        reason = _problem(module)
        if reason is not None:
            raise InputError(
                f"layer {name or 'model'!r} ({type(module).__name__}) {reason}, so it cannot be "
                "trained privately; dpdt.make_private_ready(model) replaces BatchNorm by "
                "GroupNorm(1, C) and switches off max_norm of embeddings"
            )


def make_private_ready(model: nn.Module) -> nn.Module:
    """Replace layers that cannot be trained privately; returns the model, changed in place.

    BatchNorm becomes GroupNorm(1, C), with the same affine parameters, which normalises each
    example by itself. InstanceNorm stops keeping running statistics. Embeddings stop renormalising
    their weights. Anything else is left to the check.
    """
    if isinstance(model, _BatchNorm):
        return _group_norm(model)
    for name, child in model.named_children():
        setattr(model, name, make_private_ready(child))
    if isinstance(model, _InstanceNorm) and model.track_running_stats:
        model.track_running_stats = False
        model.running_mean = model.running_var = model.num_batches_tracked = None
    if isinstance(model, nn.Embedding | nn.EmbeddingBag):
        model.max_norm = None
    return model


def _group_norm(norm: _BatchNorm) -> nn.GroupNorm:
    new = nn.GroupNorm(1, norm.num_features, eps=norm.eps, affine=norm.affine)
    if norm.affine:
        new.weight, new.bias = norm.weight, norm.bias
    return new.train(norm.training)
