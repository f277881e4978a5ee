"""Which code this is: a hash of the package's own, and the versions of what it stands on."""

from __future__ import annotations

import hashlib
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

STANDS_ON = ("torch", "numpy", "scipy", "randomgen", "dp-accounting", "safetensors")


def code_hash(package: Path) -> str:
    """A hash of every Python file below a folder."""
    code = hashlib.sha256()
    for source in sorted(package.rglob("*.py")):
        code.update(str(source.relative_to(package)).encode() + source.read_bytes())
    return code.hexdigest()


def versions() -> dict[str, str]:
    """The versions of Python and of the packages that numbers depend on; none is imported."""
    return {"python": platform.python_version()} | {name: version_of(name) for name in STANDS_ON}


def version_of(package: str) -> str:
    """Return the version of a package that may not be installed, without importing it."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"
