"""What a guarantee protects against and what it does not, in sentences."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING

from dpdt.accounting import Guarantee
from dpdt.accounting.guarantee import short, shown

WHO = {
    "example": "one training example",
    "shard": "everything that one shard of the data holds",
    "user": "everything that one user owns",
}
SEVERAL = {
    "example": "People or records that appear in several examples: each example is protected by "
    "itself.",
    "shard": "People whose records lie in several shards: each shard is protected by itself.",
    "user": "People who appear under several users.",
}
RELATIONS = {
    "replace-one": "was replaced by something else",
    "zero-out": "was in the data or left its place empty",
    "add-remove": "was in the data or not",
}
OBSERVERS = {
    "all iterates": "someone who sees the model after every step",
    "last iterate": "someone who sees this model, and no earlier iterate of the run",
}


def protects(g: Guarantee) -> list[str]:
    """What the guarantee is about."""
    factor = shown(math.exp(min(g.epsilon, 700.0)), ROUND_CEILING)
    return [
        f"Whether {WHO[g.unit]} {RELATIONS[g.relation]}, and whatever it says.",
        f"Nothing that can be seen is more than e^ε = {factor} times as likely in the one case as "
        f"in the other, plus a probability of δ = {short(g.delta)}.",
        f"It holds against {OBSERVERS[g.observer]}, whatever else they know and however long they "
        "compute.",
    ]


def does_not_protect(g: Guarantee) -> list[str]:
    """What nobody should read into it."""
    found = [
        f"Groups: of k such units together, about k times ε is shown ({g.unit} is the unit).",
        SEVERAL[g.unit],
        "Facts that are true of the population. A model is meant to learn them, even if they tell "
        "something about a person.",
        "Data that the model had seen before this run, such as those of its pretraining, and "
        "inputs that were declared public.",
        "Other runs on the same data, and settings that were tuned on them: what they cost adds "
        "up.",
        "The private folder of the run: its checkpoints, losses and scores.",
    ]
    if g.observer == "last iterate":
        found.append("Earlier iterates of the run, if anyone has seen one.")
    return found
