"""Which names and modules code uses, and which modules are taken as they are."""

from __future__ import annotations

import contextlib
import dis
import functools
import importlib
import importlib.util
import sys
import sysconfig
import types
from pathlib import Path

LIBRARIES = frozenset(
    ("torch", "numpy", "scipy", "sklearn", "transformers", "peft", "timm", "safetensors", "dpdt",
     "builtins")
) | (sys.stdlib_module_names - {"__main__"})  # fmt: skip
ATTRIBUTE = ("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR", "DELETE_ATTR", "IMPORT_FROM")
WRITES = ("STORE_GLOBAL", "DELETE_GLOBAL", "STORE_ATTR", "DELETE_ATTR")
WRITERS = frozenset(("setattr", "delattr", "__setattr__", "__dict__", "vars", "globals"))
MAKERS = frozenset(("__init__", "__new__", "__post_init__"))  # which write to what is new
GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL")  # operations of code
PATHS = tuple(Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib"))
STANDARD = tuple(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib"))


def is_library(module: str | None) -> bool:
    """Tell whether the code of a module is taken as it is."""
    return _package(module) in LIBRARIES and not _shadows(_package(module))


def changes(code: types.CodeType, loaded: frozenset[str]) -> bool:
    """Tell whether some code may write to attributes or global names of what it did not make."""
    if code.co_name in MAKERS:
        return False
    return bool(names_of(code, *WRITES) or WRITERS & loaded)


def _package(module: str | None) -> str:
    return (module or "").partition(".")[0]


@functools.cache
def _shadows(package: str) -> bool:
    """Tell whether a module of the user's own has the name of one of the standard library."""
    if package not in sys.stdlib_module_names:
        return False
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return False
    if spec is None or not spec.has_location or spec.origin is None:
        return False
    return not any(Path(spec.origin).is_relative_to(path) for path in STANDARD)


def modules_of(name: str, package: str | None) -> list[types.ModuleType]:
    """Return the modules that an import within a function gives, the packages above it too."""
    found = []
    for path in (name, f"{package}.{name}" if package else name):
        if not path or is_library(path) or installed(path):
            continue
        with contextlib.suppress(Exception):  # the import may fail in any way, and will say so then
            importlib.import_module(path)
        parts = path.split(".")
        above = (".".join(parts[: i + 1]) for i in range(len(parts)))
        found += [module for one in above if (module := sys.modules.get(one)) is not None]
    return found


@functools.cache
def installed(module: str | None) -> bool:
    """Tell whether a module is of an installed package."""
    try:
        spec = importlib.util.find_spec(_package(module))
    except (ImportError, ValueError):
        return False
    places = [] if spec is None else [spec.origin, *(spec.submodule_search_locations or ())]
    return any(Path(p).is_relative_to(path) for p in places if p for path in PATHS)


@functools.cache
def names_of(code: types.CodeType, *operations: str) -> frozenset[str]:
    """Return the names that some code, or a function inside it, has these operations on."""
    names = {str(op.argval) for op in dis.get_instructions(code) if op.opname in operations}
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            names |= names_of(part, *operations)
    return frozenset(names)
