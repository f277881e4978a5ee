"""Time of accounting and calibration for the presets.

make bench            or    python benchmarks/accounting.py
"""

from __future__ import annotations

import json
import time
from pathlib import Path

from dpdt import config
from dpdt.accounting import ACCOUNTANTS, account
from dpdt.accounting.calibrate import calibrate

DELTA = 1e-6  # below 1/n for every preset
OUT = Path(__file__).parent / "out" / "accounting.json"


def seconds(function: object, *arguments: object) -> float:
    start = time.perf_counter()
    function(*arguments)  # type: ignore[operator]
    return time.perf_counter() - start


def main() -> None:
    cases = []
    for name, overrides in [
        ("cifar10", ()),
        ("cifar100", ()),
        ("imagenet100", ()),
        ("sst2", ()),
        ("cifar10", ("train.epochs=50000", "method.penalty_schedule=paper")),
        ("digits", ("train.epochs=10", "train.batch_size=256")),
        ("digits", ("train.epochs=2", "train.batch_size=16")),
    ]:
        ledger = config.plan_of(config.load(name, overrides)).ledger()
        account(ledger, DELTA)  # the first call imports
        case = {
            "preset": " ".join([name, *overrides]),
            "steps": ledger.steps,
            "positions": ledger.header.batches,
            "account_seconds": round(seconds(account, ledger, DELTA), 4),
            "calibrate_seconds": round(seconds(calibrate, ledger, 8.0, DELTA), 4),
            "by_accountant": {
                a.name: round(seconds(a.guarantee, ledger, DELTA), 4) for a in ACCOUNTANTS
            },
        }
        cases.append(case)
        print(
            f"{case['preset']}: {case['steps']} steps × {case['positions']} positions, all "
            f"accountants {case['account_seconds']} s, calibration {case['calibrate_seconds']} s"
        )
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps({"cases": cases}, indent=1))


if __name__ == "__main__":
    main()
