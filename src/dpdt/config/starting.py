"""A configuration to start from, for a data file of the user's own.

Guarantees: of a table only the names of its columns and their declared types are looked at, never a
value. What must be known of the values is left open, for the user to fill in.
"""

from __future__ import annotations

from pathlib import Path

import tomli_w

from dpdt import data
from dpdt.data.encoding import OPEN
from dpdt.data.sheets import Sheet, sheet
from dpdt.errors import InputError

TABLE = """\
# How to train on {file}.
#
# dpdt init wrote this from the names of its columns{types}. It has looked at no value. Fill in what
# stands as {open}, from what is known without the data. Values in the data are private: they
# must decide neither a range nor a list of categories.

[data]
{name}
{target}
held_out = 0.2  # about this share of the rows is held out, to judge the model by; or:
# test = "another file, all of whose rows are held out"
missing = "refuse"  # what becomes of a row that lacks a value: "refuse", "drop" or "zero"

# A range such as [0, 120] is for numbers: what lies outside counts as its nearer end. A list such
# as ["f", "m"] is for categories. Remove the columns that are not to be used, such as names.
[data.columns]
{columns}
"""
ARRAYS = """\
# How to train on {file}.
#
# dpdt init wrote this from the headers of its arrays: {examples} examples of shape {shape},
# {classes} classes. It has looked at no example.

[data]
{name}
"""
REST = """
[model]
name = "linear"  # or "mlp", with hidden = [64]

[train]
epochs = 20
batch_size = 256

[privacy]
epsilon = 3.0  # what the run may reveal at most; smaller protects better, and costs accuracy
delta = 1e-5  # must be well below 1 / the number of examples
# dataset = "a name"  # the same for later versions of this file, so that dpdt budget adds them up
"""


def starting(path: Path, target: str | None) -> str:
    """The text of a configuration for a file."""
    if not data.is_own(str(path)):
        raise InputError(f"{path}: must be a .csv, .parquet or .npz file")
    named = _line(name=str(path))
    if not data.is_table(str(path)):
        if target is not None:
            raise InputError(f"--target: {path} has its labels in y_train; leave it out")
        facts = data.facts(str(path))
        return (
            ARRAYS.format(
                file=_plain(path.name),
                name=named,
                examples=facts.examples,
                shape=facts.shape,
                classes=facts.classes,
            )
            + REST
        )
    found = sheet(path)
    if target is not None:
        found.place(target)
    return (
        TABLE.format(
            file=_plain(path.name),
            types=" and their types alone" if found.types else " alone",
            open=f'"{OPEN}"',
            name=named,
            target=_line(target=target or OPEN) + "  # the column that is to be predicted",
            columns="\n".join(_columns(found, target)),
        )
        + REST
    )


def _columns(found: Sheet, target: str | None) -> list[str]:
    """A line for each column."""
    types = found.types or ("",) * len(found.names)
    lines = []
    for name, kind in zip(found.names, types, strict=True):
        if not name:  # a column that cannot be called by a name
            continue
        line = _line(**{name: OPEN})
        if kind == "bool":  # whose values are public
            line = line.removesuffix(f'"{OPEN}"') + '["false", "true"]'
        said = [kind] if kind else []
        if name == target:
            said.append("the target: categories to tell apart, or the range of a number")
        lines.append(line + (f"  # {_plain(', '.join(said))}" if said else ""))
    return lines + [
        f"# {_plain(n)} is {_plain(kind)}, not used" for n, kind in found.others.items()
    ]


def _line(**pair: object) -> str:
    return tomli_w.dumps(pair).strip()


def _plain(text: str) -> str:
    """A text that can stand in a comment: on one line, and not too long."""
    return "".join(c if c.isprintable() else "?" for c in text)[:80]
