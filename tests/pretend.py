"""A device that is not there, with real numbers on it: finds tensors that meet on two devices.

Tensors of the pretended device say that they are elsewhere, and compute on the CPU. As on a GPU, an
operation on tensors of two devices fails, except where torch allows it: numbers without dimensions
mix with anything, and indices on the CPU reach into other devices. So all code runs as it would
there, data-dependent branches included, and its numbers must be those of the CPU to the bit.

torch's own fake tensors have no numbers. A step looks at many: at norms, at hashes, at what is not
finite. `meta` is the one device besides the CPU that autograd knows without a driver.
"""

from contextlib import contextmanager

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

PLACE = torch.device("meta")
CPU = torch.device("cpu")
MOVES = ("aten::copy_", "aten::_to_copy", "aten::_foreach_copy_")
REACHES = ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_")


class Elsewhere(Tensor):
    """A tensor that says it is on PLACE. `inner` has its numbers."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner):
        made = Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=PLACE,
        )
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _run(func, args, kwargs or {})

    def __tensor_flatten__(self):
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(parts, meta, size, stride):
        return Elsewhere(parts["inner"])

    def __deepcopy__(self, memo):
        made = self.detach().clone()
        memo[id(self)] = made
        if isinstance(self, torch.nn.Parameter):
            made = memo[id(self)] = torch.nn.Parameter(made, self.requires_grad)
        return made


class _Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return _run(func, args, kwargs or {})


class _Made(TorchFunctionMode):
    """Tensors of PLACE from plain numbers: torch makes them without asking, and empty."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func not in (torch.tensor, torch.as_tensor, Tensor.new_tensor):
            return func(*args, **kwargs)
        own = args[0] if func is Tensor.new_tensor else torch.empty(())
        device = torch.device(kwargs.pop("device", None) or own.device)
        if func is torch.as_tensor and isinstance(args[0], Tensor):
            return args[0].to(device=device, dtype=kwargs.get("dtype"))
        if func is Tensor.new_tensor:
            kwargs.setdefault("dtype", own.dtype)
            args = args[1:]
        return torch.tensor(*args, **kwargs, device=CPU).to(device)


_narrow = False


@contextmanager
def pretended(*, float64: bool = True):
    """Within, PLACE can be computed on; with or without numbers of 64 bits."""
    global _narrow
    _narrow = not float64
    try:
        with _Mode(), _Made():
            yield PLACE
    finally:
        _narrow = False


def _run(func, args, kwargs):
    name = func._schema.name
    tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
    there = any(isinstance(t, Elsewhere) for t in tensors)
    if there and name not in MOVES:
        _refuse_two_devices(name, args, tensors)
    if kwargs.get("device") is not None:
        there = kwargs["device"].type == PLACE.type
        kwargs = {**kwargs, "device": CPU}
    inner, more = tree_map(lambda t: t.inner if isinstance(t, Elsewhere) else t, (args, kwargs))
    out = func(*inner, **more)
    if name == "aten::copy_":
        return args[0]
    if not there:
        return out
    if _narrow and any(
        isinstance(t, Tensor) and t.dtype == torch.float64 for t in tree_leaves(out)
    ):
        raise TypeError("this device has no float64")
    out = tree_map(lambda t: Elsewhere(t) if isinstance(t, Tensor) else t, out)
    return return_and_correct_aliasing(func, args, kwargs, out) if tensors else out


def _refuse_two_devices(name, args, tensors):
    if name in REACHES and isinstance(args[0], Elsewhere):  # indices may be on the CPU
        tensors = [t for t in (args[0], *args[2:3]) if isinstance(t, Tensor)]
    if any(t.dim() and not isinstance(t, Elsewhere) for t in tensors):
        raise RuntimeError(f"{name}: expected all tensors to be on the same device, found two")
