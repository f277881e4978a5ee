"""What took long to compute, on disk: one file of tensors for each key.

Files lie in $DPDT_CACHE/features. If the variable is not set, they lie in dpdt/features below
$XDG_CACHE_HOME or ~/.cache. With DPDT_CACHE=off nothing is read or written. Any file may be deleted
at any time.

Guarantees: what is read is what was written under the same key, or nothing. A file is taken only if
it names the key, if its content has the hash that was written with it, and if nobody but its owner,
who runs this, could have written it. Files hold numbers and no code. They are as private as the
data, so only their owner may read them. A file appears as a whole or not at all, so processes that
write the same one do not disturb each other. Nothing here can make a run fail: whatever goes wrong
is one warning, and the numbers are computed again.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

VARIABLE, OFF = "DPDT_CACHE", "off"
KEPT, PART = ".safetensors", ".part"
NOTABLE = 100_000_000  # bytes
ABANDONED = 86_400.0  # seconds; whoever wrote a part for longer than this is gone


def folder() -> Path | None:
    """Where files are kept; None if nowhere."""
    chosen = os.environ.get(VARIABLE)
    if chosen == OFF:
        return None
    try:
        if chosen:
            return Path(chosen).expanduser() / "features"
        base = Path(os.environ.get("XDG_CACHE_HOME") or "")
        return (base if base.is_absolute() else Path.home() / ".cache") / "dpdt" / "features"
    except RuntimeError:  # nobody knows where home is
        return None


def size() -> tuple[int, int]:
    """How many files there are, and their bytes."""
    home = folder()
    try:
        sizes = [] if home is None else [_bytes(path) for path in home.iterdir()]
    except OSError:  # there is no such folder, or it is not ours
        sizes = []
    return len(sizes), sum(sizes)


def read(key: str) -> dict[str, Tensor] | None:
    """What was written under the key, if it is there, whole and our own."""
    from safetensors import SafetensorError, safe_open

    if (home := folder()) is None:
        return None
    path = home / (key + KEPT)
    try:
        _refuse_others(home)
        _refuse_others(path)
        with safe_open(path, framework="pt") as file:
            said = file.metadata() or {}
            # copies: what is checked below is in our own memory, whatever becomes of the file
            found = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        return None
    except (OSError, SafetensorError, ValueError) as error:
        _warn(f"{path}: not used ({error}); what it should hold is computed again")
        return None
    if said != {"key": key, "content": _content(key, found)}:
        _warn(f"{path}: is damaged; what it should hold is computed again")
        return None
    return found


def write(key: str, tensors: dict[str, Tensor]) -> None:
    """Keep tensors, examples along their first dimension, under a key."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    if (home := folder()) is None:
        return
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    need = sum(tensor.nbytes for tensor in tensors.values())
    part = None
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        _refuse_others(home)
        _sweep(home)
        if need > (free := shutil.disk_usage(home).free) // 2:
            raise OSError(f"they take {_gb(need)}, and {_gb(free)} are free")
        handle, part = tempfile.mkstemp(dir=home, suffix=PART)  # mode 0600
        os.close(handle)
        save_file(tensors, part, metadata={"key": key, "content": _content(key, tensors)})
        os.chmod(part, 0o600)
        os.replace(part, home / (key + KEPT))
    except (OSError, SafetensorError) as error:
        if part is not None:
            Path(part).unlink(missing_ok=True)
        _warn(f"{home}: features are not kept for the next time ({error})")
        return
    if need >= NOTABLE:
        print(
            f"features kept for the next time: {_gb(need)} in {home}, {_gb(size()[1])} in all "
            f"({VARIABLE} names another folder, or {OFF})",
            file=sys.stderr,
        )


def _content(key: str, tensors: dict[str, Tensor]) -> str:
    """A hash of the tensors, with their names, and of the key that they belong to."""
    from dpdt.data.access import fingerprint

    digest = hashlib.sha256(key.encode())
    for name in sorted(tensors):
        digest.update(f"{name} {fingerprint(tensors[name])}".encode())
    return digest.hexdigest()


def _refuse_others(path: Path) -> None:
    """Refuse what another user owns or could have written, and what is no plain file or folder."""
    found = os.lstat(path)
    if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
        raise OSError(f"{path} is neither a file nor a folder")
    if hasattr(os, "getuid") and (found.st_uid != os.getuid() or found.st_mode & 0o022):
        raise OSError(f"{path} belongs to another user, or others may write to it")


def _sweep(home: Path) -> None:
    """Remove what processes that were ended have left behind."""
    for path in home.glob("*" + PART):
        try:
            if time.time() - path.stat().st_mtime > ABANDONED:
                path.unlink()
        except FileNotFoundError:  # another process was faster
            continue


def _bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _gb(number: int) -> str:
    return f"{number / 1e9:.1f} GB"


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=3)
