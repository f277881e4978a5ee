"""A small run and its release, made once: seven weights, two steps, no slow accountant."""

import shutil

import pytest
import torch
from cryptography.hazmat.primitives import serialization as formats
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import nn

from dpdt import config
from dpdt.releasing.making import release
from dpdt.runs import Run
from dpdt.training import run as running
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


QUICK = ("train.epochs=2", "method.sampling=partition", "method.lr=0.1", "method.noise=1.0",
         "method.memory=none", "method.averaging=0.0")  # fmt: skip


def run_in(folder, *overrides):
    chosen = config.load("digits", (*QUICK, *overrides))
    running.run(chosen, folder, show_progress=False)
    return Run(folder)


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    return run_in(tmp_path_factory.mktemp("runs") / "finished")


@pytest.fixture
def run(finished, tmp_path):
    return Run(shutil.copytree(finished.path, tmp_path / "run"))
