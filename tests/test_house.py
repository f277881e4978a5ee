"""The house is as docs/design.md draws it: who imports whom, how long files and functions are."""

import ast
import graphlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.mutations import MUTATIONS, why_not

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "dpdt"
FILES = sorted(PACKAGE.rglob("*.py"))
HEADING = "## Who imports whom"
SLOW = {"torch", "numpy", "scipy", "dp_accounting", "sklearn", "matplotlib", "rich"}
SLOW |= {"transformers", "peft", "safetensors", "PIL", "cryptography", "pyarrow", "click"}
SLOW |= {"tokenizers"}


def module_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in FILES}


def room(module: str) -> str:
    """The package or module below dpdt that a module belongs to."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "dpdt"


def imports(tree: ast.AST) -> Iterator[tuple[str, ast.stmt]]:
    """Every module that is imported for more than types, with the statement."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, node) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield (whole if whole in MODULES else str(node.module)), node
        else:
            yield from imports(node)


def edges() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for module, path in MODULES.items():
        for target, _ in imports(ast.parse(path.read_text())):
            inside = target.split(".")[0] == "dpdt" and target != "dpdt"
            if inside and room(target) != room(module):
                found.setdefault(room(module), set()).add(room(target))
    return found


def drawn() -> dict[str, set[str]]:
    """The lines `room → rooms` below the heading."""
    text = (ROOT / "docs" / "design.md").read_text().split(HEADING)[1].split("\n## ")[0]
    lines = [line.split("→") for line in text.splitlines() if "→" in line and line[:4] == "    "]
    return {a.strip(): {b.strip() for b in rooms.split(",")} for a, rooms in lines}


def test_rooms_import_what_the_design_draws():
    found, allowed = edges(), drawn()
    for name in ("dpdt", "__main__"):
        found.pop(name, None)
    assert found == allowed


def test_there_is_no_cycle():
    tuple(graphlib.TopologicalSorter(drawn()).static_order())


@cache
def slow(module: str) -> bool:
    """Whether to import a module takes time."""
    seen, left = set(), [module]
    while left:
        name = left.pop()
        if name.split(".")[0] in SLOW:
            return True
        if name in MODULES and name not in seen:
            seen.add(name)
            parents = [name.rsplit(".", i)[0] for i in range(1, name.count("."))]
            left += [*parents, *at_the_top(name)]
    return False


@cache
def at_the_top(module: str) -> list[str]:
    body = ast.parse(MODULES[module].read_text()).body
    top = [node for node in body if isinstance(node, ast.Import | ast.ImportFrom)]
    return [target for target, _ in imports(ast.Module(top, []))]


def test_what_is_imported_late_takes_time_to_import():
    for module, path in MODULES.items():
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef):
                for target, node in imports(function):
                    where = f"{module}.{function.name} line {node.lineno}: {target}"
                    assert slow(target) or "cli" in module, where


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_no_file_is_too_long_to_read(path):
    text = path.read_text()
    assert text.count("\n") <= 700
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno - node.lineno < 60, node.name


def test_every_deliberate_breakage_still_applies():
    """A line that was rewritten takes its mutation along (mutations.py)."""
    stale = [f"{m.file}: {m.what}: {why}" for m in MUTATIONS if (why := why_not(m))]
    assert stale == []
    assert {test.partition("::")[0] for m in MUTATIONS for test in m.tests} <= {
        str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")
    }
