"""Sealed identities: which runs used the same data, for the holder of a key and for nobody else.

    id   = HMAC(key, "data" ‖ content)                    the same for the same data
    body = id ‖ id' ⊕ HMAC(key, "pad" ‖ salt)             fresh in every run
    seal = salt ‖ body ‖ HMAC(key, "check" ‖ salt ‖ body)

id' is the identity of the data's name, or id again if they have none. Runs belong together if they
share either. HMAC is HMAC-SHA256; identities and the check are cut to 16 bytes. The salt is 16
bytes from the operating system.

A ledger is public. If it carried a hash of the data, two ledgers would tell whether two data sets
are equal, and so whether one record was in the second: that alone breaks differential privacy of
the pair. A seal looks like 64 random bytes to whoever has no key, whatever the data are.

The key is a file: $DPDT_KEY, else $XDG_CONFIG_HOME/dpdt/key, else ~/.config/dpdt/key. It is made on
first use, for its owner alone. A seal of a lost key opens for nobody; `dpdt budget` then counts the
run to all data.
"""

from __future__ import annotations

import hmac
import os
import re
import secrets
import warnings
from functools import cache
from pathlib import Path

from dpdt.errors import InputError

PART = 16  # bytes of each part of a seal
SEAL = re.compile(r"[0-9a-f]{128}")
KEY = re.compile(rb"[0-9a-f]{64}\n?")


def sealed(key: bytes, content: str, name: str | None = None) -> str:
    """A new seal of what the content stands for, and of its name.

    Guarantees: without the key, seals are indistinguishable from random bytes, as long as
    HMAC-SHA256 is a pseudorandom function.
    """
    salt = secrets.token_bytes(PART)
    second = content if name is None else f"name {name}"
    both = identity(key, content) + identity(key, second)
    body = _xor(both, _pad(key, salt))
    return (salt + body + _mac(key, b"check", salt + body)).hex()


def opened(key: bytes, seal: str) -> frozenset[bytes] | None:
    """The identities in a seal; None if the seal was made with another key, or changed since."""
    if not SEAL.fullmatch(seal):
        return None
    parts = bytes.fromhex(seal)
    salt, body, check = parts[:PART], parts[PART : 3 * PART], parts[3 * PART :]
    if not hmac.compare_digest(check, _mac(key, b"check", salt + body)):
        return None
    both = _xor(body, _pad(key, salt))
    return frozenset((both[:PART], both[PART:]))


def identity(key: bytes, content: str) -> bytes:
    """What a seal of the content opens to."""
    return _mac(key, b"data", content.encode())


def differ(key: bytes, one: str, other: str) -> bool:
    """Whether two seals are of different data, as far as the key tells."""
    first, second = opened(key, one), opened(key, other)
    return first is not None and second is not None and first.isdisjoint(second)


def own_key() -> bytes:
    """This user's key, made on first use. If it cannot be kept, a key for this process alone."""
    try:
        path = key_path()
        try:
            return _read(path)
        except FileNotFoundError:
            _make(path)
            return _read(path)
    except (OSError, RuntimeError) as error:
        warnings.warn(
            f"the key for budgets cannot be kept ({error}), so dpdt budget will count this run to "
            "all data; let DPDT_KEY name a file that can be written",
            stacklevel=2,
        )
        return _passing()


def key_path() -> Path:
    """Where the key is kept. RuntimeError if this user has no home."""
    if named := os.environ.get("DPDT_KEY"):
        return Path(named).expanduser()
    home = os.environ.get("XDG_CONFIG_HOME")
    return (Path(home) if home else Path.home() / ".config") / "dpdt" / "key"


def _read(path: Path) -> bytes:
    try:
        text = path.read_bytes()
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise
    except OSError as error:
        raise InputError(f"{path}: cannot read the key for budgets ({error.strerror})") from None
    if not KEY.fullmatch(text):
        raise InputError(
            f"{path}: not a key for budgets, which is 64 hexadecimal digits; restore it, or move "
            "it away for a new one, which opens no earlier seal"
        )
    if mode & 0o077:
        warnings.warn(
            f"{path}: others can read the key for budgets, and tell by it which runs used the same "
            f"data; chmod 600 {path}",
            stacklevel=3,
        )
    return bytes.fromhex(text.decode())


def _make(path: Path) -> None:
    """A new key, unless another process makes one first: it appears whole or not at all."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    try:
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(handle, "w", encoding="ascii") as file:
            file.write(secrets.token_bytes(32).hex() + "\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(part, path)
        except FileExistsError:
            return
    finally:
        part.unlink(missing_ok=True)


@cache
def _passing() -> bytes:
    return secrets.token_bytes(32)


def _pad(key: bytes, salt: bytes) -> bytes:
    return hmac.digest(key, b"pad" + salt, "sha256")


def _mac(key: bytes, purpose: bytes, text: bytes) -> bytes:
    return hmac.digest(key, purpose + text, "sha256")[:PART]


def _xor(a: bytes, b: bytes) -> bytes:
    return bytes(x ^ y for x, y in zip(a, b, strict=True))
