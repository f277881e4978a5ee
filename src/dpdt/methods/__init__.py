"""The methods by name. A folder each: settings, checks and plan without torch, and the engine."""

from __future__ import annotations

from dpdt.methods.dpdt import Dpdt
from dpdt.methods.dpsgd import Dpsgd
from dpdt.methods.gep import Gep
from dpdt.methods.method import Method
from dpdt.methods.pate import Pate
from dpdt.methods.plain import Plain

METHODS: dict[str, type[Method]] = {
    "dpdt": Dpdt,
    "dpsgd": Dpsgd,
    "gep": Gep,
    "pate": Pate,
    "plain": Plain,
}
