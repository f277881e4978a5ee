"""What PRESET, FILE and RUN stand for."""

from __future__ import annotations

from pathlib import Path

from dpdt import config, data, models
from dpdt.accounting import Measurement
from dpdt.algorithm.blocks import Blocks
from dpdt.errors import InputError
from dpdt.ledger import Ledger
from dpdt.methods.plan import Plan, plan, settled
from dpdt.runs.folder import AUDIT, LEDGER, RunFolder, is_run


def plan_of(chosen: config.Config) -> Plan:
    """What a configuration's run would do."""
    facts = data.facts(chosen.data.name, chosen.data.limit)
    chosen = settled(chosen, can_whiten=models.is_linear(chosen.model) and chosen.data.public > 1)
    blocks = Blocks.group(models.parameters(chosen.model, facts), chosen.method.granularity)
    return plan(chosen, blocks, facts.examples, models.bounds(chosen.model), chosen.data.public)


def planned(chosen: config.Config) -> Ledger:
    """The ledger that a configuration's run would have."""
    return plan_of(chosen).ledger()


def measured_of(source: str) -> Measurement | None:
    """What an audit of a run folder measured, if there was one."""
    folder = RunFolder.existing(Path(source))
    if not is_run(source) or not (folder.path / "private" / AUDIT).is_file():
        return None
    record = folder.read_private(AUDIT)["privacy"]["measured"]
    return record and Measurement(**record)


def ledger_of(
    source: str, overrides: tuple[str, ...], method: str | None
) -> tuple[Ledger, config.Config]:
    """The ledger of a run folder as it was, or of a preset or file as it would be."""
    if not is_run(source):
        chosen = config.load(source, overrides, method)
        return planned(chosen), chosen
    if overrides or method:
        asked = f"--set {overrides[0]}" if overrides else f"--method {method}"
        raise InputError(f"{asked}: {source} has been run and cannot be changed")
    return Ledger.read(Path(source) / LEDGER), config.load(str(Path(source) / "config.toml"))
