"""The sections of a configuration that belong to no other room, and the whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from dpdt import data
from dpdt.data import Table
from dpdt.data.encoding import DROP, RULES
from dpdt.errors import InputError
from dpdt.fields import choice, integer, key, number
from dpdt.methods.dpdt import Dpdt
from dpdt.methods.method import Method, Training, refuse
from dpdt.methods.settings import PrivacySettings, TrainSettings
from dpdt.models.settings import ModelSettings


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """The section [data]."""

    name: str = key("digits", "the name of a data set", lambda v: isinstance(v, str))
    limit: int | None = integer(None, 1)  # use this many training examples
    public: int = integer(0, 0)  # number of held-out examples that are public, without labels
    # of a .csv or .parquet
    target: str | None = key(None, "the name of a column", lambda v: isinstance(v, str))
    columns: Mapping[str, Any] | None = key(None, "a table", lambda v: isinstance(v, Mapping))
    held_out: float = number(0.2, least=0.0, most=0.9)  # the share of rows to judge by
    test: str | None = key(None, "a file", lambda v: isinstance(v, str))  # or a file of them
    missing: str = choice(RULES[0], RULES)  # what becomes of a row that lacks a value

    def __post_init__(self) -> None:
        """Refuse what the file cannot be read by, before it is looked for."""
        if self.table is None and any((self.target, self.columns, self.test)):
            raise InputError(
                "data.target, data.columns and data.test are for a .csv or .parquet file; found "
                f"data.name {self.name!r}"
            )

    @property
    def table(self) -> Table | None:
        """What is declared of a .csv or .parquet."""
        if not data.is_table(self.name):
            return None
        return Table.of(
            target=self.target,
            columns=self.columns,
            held_out=self.held_out,
            test=self.test,
            missing=self.missing,
        )

    def facts(self) -> data.Facts:
        """What is public about the data."""
        return data.facts(self.name, self.limit, self.table)

    def load(self) -> data.Examples:
        """The data themselves."""
        return data.load(self.name, self.limit, self.table)


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

    def __post_init__(self) -> None:
        """Refuse data of which one row more, or another one, would change other examples."""
        super().__post_init__()
        nominal = self.privacy.examples is not None
        refuse(
            (
                nominal and self.data.limit is not None,
                "data.limit: rows are taken by how many there are, and with privacy.examples this "
                "number is private; cut the file yourself",
            ),
            (
                nominal and self.audit.canaries > 0,
                "audit.canaries: are planted by how many examples there are, and with "
                "privacy.examples this number is private; audit a run without it",
            ),
        )
        one_for_one = self.method.relation(self.privacy) == "replace-one"
        if self.data.table is None or not (self.method.private and one_for_one):
            return
        why = "the guarantee is about one row replaced (a partition, or privacy.relation)"
        refuse(
            (
                self.data.test is None,
                f"data.test: missing; {why}, and a hash of a row may move it between the training "
                "rows and those held out, and others with it; name a file of rows to judge by",
            ),
            (
                self.data.missing == DROP,
                f"data.missing: 'drop' does not go with this; {why}, and a row that is left out "
                "moves others; use refuse or zero",
            ),
        )

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
