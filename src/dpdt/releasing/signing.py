"""Ed25519 signatures, by keys in PEM or OpenSSH format."""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dpdt.errors import InputError

ALGORITHM = "ed25519"
PASSPHRASE = "DPDT_KEY_PASSPHRASE"
LARGEST = 100_000  # bytes of a file with a key

Ask = Callable[[], str]


def private_key(path: str | Path, ask: Ask | None = None) -> Any:
    """The private key in a file. `ask` gives the passphrase if the environment has none."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization as formats
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    raw = _read(path)
    ssh = b"OPENSSH PRIVATE KEY" in raw
    load: Any = formats.load_ssh_private_key if ssh else formats.load_pem_private_key
    unreadable = InputError(
        f"{path}: no private key could be read from it; an Ed25519 key in PEM or OpenSSH format is "
        "needed, and its passphrase if it has one"
    )
    try:
        found = load(raw, password=None)
    except TypeError:  # it has a passphrase
        secret = _passphrase(path, ask).encode()
        try:
            found = load(raw, password=secret)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            raise unreadable from None
    except (ValueError, UnsupportedAlgorithm):
        raise unreadable from None
    if not isinstance(found, Ed25519PrivateKey):
        raise InputError(
            f"{path}: must be an Ed25519 key, found {type(found).__name__}; ssh-keygen -t ed25519 "
            "makes one"
        )
    return found


def public_key(path: str | Path) -> bytes:
    """The 32 bytes of a public key in a file."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization as formats
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    raw = _read(path)
    if b"PRIVATE KEY" in raw:
        raise InputError(f"{path}: is a private key; give the public one, which others may have")
    ssh = not raw.lstrip().startswith(b"-----")
    try:
        found: Any = (formats.load_ssh_public_key if ssh else formats.load_pem_public_key)(raw)
    except (ValueError, UnsupportedAlgorithm):
        raise InputError(
            f"{path}: no public key could be read from it; an Ed25519 key in PEM or OpenSSH format "
            "is needed"
        ) from None
    if not isinstance(found, Ed25519PublicKey):
        raise InputError(f"{path}: must be an Ed25519 key, found {type(found).__name__}")
    return found.public_bytes_raw()


def signed(key: Any, message: bytes) -> dict[str, str]:
    """A signature, as the certificate holds it."""
    return {
        "algorithm": ALGORITHM,
        "public_key": key.public_key().public_bytes_raw().hex(),
        "signature": key.sign(message).hex(),
    }


def signer(seal: dict[str, Any], message: bytes) -> bytes | None:
    """The public key whose owner has signed the message; None if the signature is not right."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    sizes = {"public_key": 64, "signature": 128}
    if seal.keys() != {"algorithm", *sizes} or seal["algorithm"] != ALGORITHM:
        return None
    for name, size in sizes.items():
        if not (isinstance(seal[name], str) and re.fullmatch(f"[0-9a-f]{{{size}}}", seal[name])):
            return None
    raw = bytes.fromhex(seal["public_key"])
    try:
        Ed25519PublicKey.from_public_bytes(raw).verify(bytes.fromhex(seal["signature"]), message)
    except (InvalidSignature, ValueError):
        return None
    return raw


def fingerprint(key: bytes) -> str:
    """As `ssh-keygen -l` prints it."""
    kind = b"ssh-ed25519"
    wire = b"".join(len(part).to_bytes(4, "big") + part for part in (kind, key))
    return "SHA256:" + base64.b64encode(hashlib.sha256(wire).digest()).decode().rstrip("=")


def _passphrase(path: str | Path, ask: Ask | None) -> str:
    if (found := os.environ.get(PASSPHRASE)) is not None:
        return found
    if ask is None:
        raise InputError(f"{path}: has a passphrase; set {PASSPHRASE}")
    return ask()


def _read(path: str | Path) -> bytes:
    try:
        if not Path(path).is_file():
            raise InputError(f"{path}: is not a file with a key")
        with open(path, "rb") as file:
            return file.read(LARGEST)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
