"""`.ci/run` brings a browser along where it can, and goes on where it cannot."""

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / ".ci" / "run"
UPDATED, INSTALLED = "apt-get update", "apt-get install chromium"


@pytest.mark.parametrize(
    ("there", "variables", "user", "asked", "told"),
    [
        (["apt-get"], {"CI": "true"}, "0", [UPDATED, INSTALLED], ""),
        (["apt-get"], {"CI": "true", "FAILS": "update"}, "0", [UPDATED, INSTALLED], ""),
        (["apt-get"], {"CI": "true", "FAILS": "install"}, "0", [UPDATED, INSTALLED], "cannot be"),
        (["apt-get"], {"CI": "true"}, "1000", [], "no root or apt-get"),
        ([], {"CI": "true"}, "0", [], "no root or apt-get"),
        (["apt-get"], {}, "0", [], ""),
        (["apt-get", "chromium"], {"CI": "true"}, "0", [], ""),
        (["apt-get", "chromium-browser"], {"CI": "true"}, "0", [], ""),
    ],
)
def test_a_browser_is_installed_where_that_can_be(tmp_path, there, variables, user, asked, told):
    log = tmp_path / "log"
    words = {
        "make": f'echo "make $1" >> {log}',
        "id": f"echo {user}",
        "apt-get": f'echo "apt-get $1${{5:+ $5}}" >> {log}; [ "$1" != "$FAILS" ]',
    }
    for name in ("make", "id", *there):
        stub = tmp_path / name
        stub.write_text(f"#!/bin/sh\n{words.get(name, ':')}\n")
        stub.chmod(0o755)
    for name in ("dirname", "timeout"):
        (tmp_path / name).symlink_to(shutil.which(name))
    done = subprocess.run(
        [shutil.which("bash"), SCRIPT], env={"FAILS": "", **variables, "PATH": str(tmp_path)},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert log.read_text().splitlines() == [*asked, "make lint", "make test"]
    assert told in done.stderr
    assert bool(told) == bool(done.stderr)
