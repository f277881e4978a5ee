"""A built wheel works elsewhere, presets inside."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_a_wheel_installed_elsewhere_works(tmp_path):
    source = tmp_path / "source"
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    wanted = ("src/", "pyproject.toml", "README.md", "LICENSE")
    files = [f for f in listed if f.startswith(wanted)]
    for file in files:
        (source / file).parent.mkdir(parents=True, exist_ok=True)
        (source / file).write_bytes((ROOT / file).read_bytes())
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation",
         "--wheel-dir", str(tmp_path), str(source)],
        check=True,
    )  # fmt: skip
    (wheel,) = tmp_path.glob("*.whl")
    target = tmp_path / "elsewhere"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    for kind in ("html", "css", "js"):
        assert (target / "dpdt" / "report" / "page" / f"page.{kind}").is_file()
    done = subprocess.run(
        [sys.executable, "-c",
         "import dpdt, sys; assert dpdt.__file__.startswith(sys.argv.pop(1)), dpdt.__file__; "
         "from dpdt.cli.main import main; main()",
         str(target), "train", "--set", "train.epochs=1", "--json"],
        env={**os.environ, "PYTHONPATH": str(target)},
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["steps"] == 1
