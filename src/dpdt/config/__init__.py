"""A run's configuration: a TOML file or preset, checked before any work starts.

The same checks serve files, overrides and the keyword arguments of the Python interface.
"""

from __future__ import annotations

from dpdt.config.loading import default, load, presets
from dpdt.config.options import Options, training
from dpdt.config.planning import plan_of, problem_of
from dpdt.config.sections import AuditSettings, Config, DataSettings
from dpdt.config.tables import DEFAULT, every_key

__all__ = [
    "DEFAULT",
    "AuditSettings",
    "Config",
    "DataSettings",
    "Options",
    "default",
    "every_key",
    "load",
    "plan_of",
    "presets",
    "problem_of",
    "training",
]
