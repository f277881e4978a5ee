"""A small run and its release, made once: seven weights, two steps, no slow accountant."""

import shutil

import pytest
import torch
from cryptography.hazmat.primitives import serialization as formats
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import nn

from dpdt.releasing.making import release
from tests.numbers import train

GIVEN = {"epochs": 2, "batch_size": 20, "noise": 2.0, "auxiliaries": 5, "memory": "none"}


def trained(**options):
    torch.manual_seed(0)
    x, y = torch.randn(20, 2), torch.randint(0, 2, (20,))
    return train(nn.Linear(2, 2, bias=False), (x, y), **{**GIVEN, **options})


def write_keys(folder, name):
    """A new key pair in OpenSSH format."""
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        formats.Encoding.PEM, formats.PrivateFormat.OpenSSH, formats.NoEncryption()
    )
    public = key.public_key().public_bytes(formats.Encoding.OpenSSH, formats.PublicFormat.OpenSSH)
    (folder / name).write_bytes(private)
    (folder / f"{name}.pub").write_bytes(public)
    return folder / name, folder / f"{name}.pub"


@pytest.fixture(scope="session")
def keys(tmp_path_factory):
    return write_keys(tmp_path_factory.mktemp("keys"), "signer")


@pytest.fixture(scope="session")
def made(tmp_path_factory, keys):
    """An unsigned and a signed release of one model."""
    folder, result = tmp_path_factory.mktemp("made"), trained()
    release(result, to=folder / "plain", description="ten pairs")
    release(result, to=folder / "signed", sign=keys[0])
    return folder


@pytest.fixture
def unsigned(made, tmp_path):
    return shutil.copytree(made / "plain", tmp_path / "plain")


@pytest.fixture
def signed(made, tmp_path):
    return shutil.copytree(made / "signed", tmp_path / "signed")
