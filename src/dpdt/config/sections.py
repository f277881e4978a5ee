"""The sections of a configuration that belong to no other room, and the whole."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from dpdt.fields import choice, integer, key
from dpdt.methods.dpdt import Dpdt
from dpdt.methods.method import Method, Training
from dpdt.methods.settings import PrivacySettings, TrainSettings
from dpdt.models.settings import ModelSettings


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """The section [data]."""

    name: str = key("digits", "the name of a data set", lambda v: isinstance(v, str))
    limit: int | None = integer(None, 1)  # use this many training examples
    public: int = integer(0, 0)  # number of held-out examples that are public, without labels


@dataclass(frozen=True, kw_only=True)
class AuditSettings:
    """The section [audit]: canaries that take the place of training examples."""

    canaries: int = integer(0, 0)
    canary: str = choice("mislabelled", ("mislabelled", "noise", "gradient"))


SECTIONS: dict[str, type] = {
    "data": DataSettings,
    "model": ModelSettings,
    "method": Method,  # METHODS has the class of each
    "train": TrainSettings,
    "privacy": PrivacySettings,
    "audit": AuditSettings,
}


@dataclass(frozen=True, kw_only=True)
class Config(Training):
    """A whole run."""

    method: Method = Dpdt()
    data: DataSettings = DataSettings()
    model: ModelSettings = ModelSettings()
    audit: AuditSettings = AuditSettings()

    def as_tables(self) -> dict[str, Any]:
        """Nested dicts that can be written as TOML; keys without a value are left out."""
        return {
            section: {k: v for k, v in asdict(getattr(self, section)).items() if v is not None}
            for section in SECTIONS
        }

    @property
    def training(self) -> Training:
        """What training itself is told."""
        return Training(**{f.name: getattr(self, f.name) for f in fields(Training)})
