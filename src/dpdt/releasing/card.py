"""The model card, README.md: a certificate in words, in the format of Hugging Face.

It is a function of the certificate and the configuration. Whoever verifies writes it anew and
compares, so that a card cannot promise more than its certificate.
"""

from __future__ import annotations

import json
import re
from decimal import ROUND_CEILING, ROUND_FLOOR
from math import prod
from typing import Any

from dpdt.accounting.guarantee import RELATIONS, short, shown
from dpdt.tasks import task_of

TAGS = ("differential-privacy", "privacy", "dpdt")


def card(claims: dict[str, Any], config: dict[str, Any]) -> str:
    """The text of the card."""
    g = claims["guarantee"]
    epsilon = shown(g["epsilon"], ROUND_CEILING)
    parts = [
        _metadata(claims, epsilon),
        f"# A model with ε ≤ {epsilon}, proven",
        f"This model was trained with differential privacy by dpdt {plain(claims['dpdt'])}. "
        "`certificate.json` holds the claim and all that it rests on.",
        _table(g, claims, epsilon),
        "## What it protects against",
        _list(claims["protects"]),
        "## What it does not protect against",
        _list(claims["does_not_protect"]),
        "## Conditions",
        "The number holds because each of these does:",
        _list(f"{c['text']}: {c['why']}" for c in g["conditions"]),
        *_claimed(claims["claimed"]),
        "## Training data",
        _described(claims["description"]),
        "## Model",
        _model(config),
        *_accuracy(claims["accuracy"]),
        "## Audit",
        _audit(claims["audit"]),
        "## How to verify",
        "    dpdt verify .",
        "It computes every hash, the ledger and ε anew. It runs nothing from this folder. An "
        "unsigned certificate protects against accidents only: who can change files can also make "
        "a new certificate. `--key` compares with the public key of whom you trust.",
        "## How to use",
        "    dpdt predict . inputs.csv",
        'In Python, `dpdt.load(".")` gives the model.',
    ]
    return "\n\n".join(parts) + "\n"


def plain(text: str) -> str:
    """Text on one line, inside which nothing means anything to Markdown or HTML."""
    return re.sub(r"([\\`*_{}\[\]<>#|&~!$^])", r"\\\1", text)


def _metadata(claims: dict[str, Any], epsilon: str) -> str:
    """YAML between dashes. Texts are in double quotes, as JSON writes them."""
    lines = ["---", "library_name: dpdt"]
    if claims["license"]:
        lines.append(f"license: {json.dumps(claims['license'])}")
    lines += ["tags:", *(f"- {tag}" for tag in TAGS), "privacy:"]
    g = claims["guarantee"]
    lines.append(f"  epsilon: {json.dumps(epsilon)}")
    for name in ("delta", "unit", "relation", "accountant", "observer"):
        lines.append(f"  {name}: {json.dumps(str(g[name]))}")
    return "\n".join([*lines, "---"])


def _table(g: dict[str, Any], claims: dict[str, Any], epsilon: str) -> str:
    mu = "—" if g["mu"] is None else shown(g["mu"], ROUND_CEILING)
    rows = [
        ("ε, at most", epsilon),
        ("δ", short(g["delta"])),
        ("μ, at most", mu),
        ("unit", g["unit"]),
        ("relation", f"{RELATIONS[g['relation']]} {g['unit']}"),
        ("accountant", g["accountant"]),
        ("observer", g["observer"]),
        ("steps", str(claims["ledger"]["steps"])),
    ]
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {plain(v)} |" for name, v in rows)])


def _described(text: str | None) -> str:
    if text is None:
        return "Whoever released this model did not describe them."
    return f"In the words of whoever released this model: {plain(text)}"


def _list(lines: Any) -> str:
    return "\n".join(f"- {plain(line)}" for line in lines)


def _claimed(claimed: list[dict[str, Any]]) -> list[str]:
    if not claimed:
        return []
    rows = (f"ε = {shown(c['epsilon'])} by {c['accountant']}: {c['why']}" for c in claimed)
    return ["These numbers are claimed elsewhere, and do **not** hold for this model:", _list(rows)]


def _model(config: dict[str, Any]) -> str:
    facts, settings = config["facts"], config["model"]
    number = sum(prod(shape) for shape in config["trained"].values())
    name = f"{settings['name']} ({config['class']})" if settings else config["class"]
    return plain(f"{name}, {number} trained parameters{_outputs(facts, settings)}.")


def _outputs(facts: dict[str, Any], settings: dict[str, Any] | None) -> str:
    """What the model says of an example."""
    if settings is None:
        return ""
    task, outputs = task_of(settings["task"], facts["task"], facts["classes"])
    if task.classes:
        return f", {facts['classes']} classes"
    return f", for {task.name}, with {outputs} output{'s' * (outputs > 1)}"


def _accuracy(accuracy: dict[str, Any] | None) -> list[str]:
    if accuracy is None:
        return []
    value = shown(accuracy["value"], ROUND_FLOOR)
    text = f"{value} on {accuracy['examples']} held-out examples that were declared public."
    return ["## Accuracy", plain(text)]


def _audit(audit: dict[str, Any]) -> str:
    if audit["verdict"] == "not audited":
        return "The model was not audited."
    by = plain("; ".join(audit["attacks"]))
    if not audit["bounds"]:
        return f"It was attacked by {by}. None of these can contradict an ε by itself."
    confidence = plain(f"{audit['confidence']:.0%}")
    return f"It survived: attacks by {by} did not contradict ε, at {confidence} confidence."
