"""Breaks each line that privacy rests on, one at a time, and says which breakages no test notices.

    python tests/mutations.py               all of them: about an hour on one core
    python tests/mutations.py --list        what there is
    python tests/mutations.py --only TEXT   those whose file or description holds TEXT
    python tests/mutations.py --whole       survivors meet the whole suite as well

The project is copied to a temporary folder and broken there; the working tree is never touched.
Each mutation names a few tests that should notice it. Those that fail without any mutation are
told first, and count for nothing. The exit status is 1 if a mutation survives or no longer applies.

pytest does not collect this file, and no workflow runs it. After a change to code that privacy
rests on, run it with --only.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = Path("src/dpdt")
LEFT_OUT = (
    ".git",
    ".venv",
    ".*_cache",
    ".hypothesis",
    "__pycache__",
    "*.egg-info",
    "build",
)
CASES = "150"  # of tests/test_sensitivity.py
PATIENCE = 900.0  # seconds; a mutation that hangs the tests is noticed too
CAUGHT, SURVIVED, UNCLEAR = "caught", "survived", "unclear"  # unclear: pytest itself failed
THREADS = "OMP_NUM_THREADS"


@dataclass(frozen=True)
class Mutation:
    """One breakage: `old` must occur exactly once in the file, `tests` should notice `new`."""

    file: str  # in src/dpdt
    what: str
    old: str
    new: str
    tests: tuple[str, ...]


USERS = "tests/training/test_users.py"
AHEAD = "tests/training/test_ahead.py"
ATTENTION = "tests/algorithm/test_attention.py"
KERNELS = "tests/algorithm/test_kernels.py"
ENCODERS = "tests/models/test_encoders.py"
CALLBACKS = "tests/training/test_callbacks.py"
OWN = "tests/training/test_own.py"
OVERLAP = "tests/data/test_overlap.py"
IN_PYTHON = "tests/training/test_kept.py"
EARLIER = "tests/training/test_earlier.py"
OPTIMIZERS = "tests/methods/test_optimizers.py"
TABLES = "tests/data/test_tables.py"
ELSEWHERE = "tests/training/test_devices.py"
PRECISION = "tests/algorithm/test_precision.py"
AGREES = "tests/algorithm/test_engine_agrees.py"
AUGMENT = "tests/training/test_augment.py"
BOUND = "tests/algorithm/test_bound.py"
TAPS = "tests/algorithm/test_taps.py"
CALIBRATE = "tests/accounting/test_calibrate.py"
EXPLORE = "tests/report/test_explore.py"
ALLOCATE = "tests/accounting/test_allocate.py"
ALLOCATION = "tests/methods/test_allocation.py"
BUDGET = "tests/releasing/test_budget.py"
SEAL = "tests/test_seal.py"
SEVERAL = "tests/accounting/test_several.py"
CANARIES = "tests/audit/test_canaries.py"
CLI = "tests/cli/test_cli.py"
COMPARE = "tests/cli/test_compare.py"
FILES_OF_OTHERS = "tests/data/test_hostile.py"
COMPOSITION = "tests/accounting/test_composition.py"
CONFIG = "tests/config/test_config.py"
METHODS_ALL = "tests/methods/test_conformance.py"
PUBLIC_BYTES = "tests/training/test_public.py"
TOLD = "tests/test_told.py"
CONFORMANCE = "tests/accounting/test_conformance.py"
CONVEX = "tests/test_convex.py"
DPSGD = "tests/methods/test_dpsgd.py"
GAUSSIAN = "tests/accounting/test_gaussian.py"
GEP = "tests/methods/test_gep.py"
AVERAGE = "tests/algorithm/test_average.py"
HOLES = "tests/test_holes.py"
LEDGER = "tests/ledger/test_ledger.py"
MUTANTS = "tests/test_mutants.py"
NOISE = "tests/algorithm/test_noise.py"
BANDS = "tests/test_bands.py"
CORRELATED = "tests/training/test_correlated.py"
MATRIX = "tests/accounting/test_matrix.py"
PARTITION = "tests/test_partition.py"
PATE = "tests/methods/test_pate.py"
POISSON = "tests/accounting/test_poisson.py"
SHARES = "tests/distributed/test_shares.py"
RANKS_EQUAL = "tests/distributed/test_equal.py"
RANKS_FAIL = "tests/distributed/test_failures.py"
SILENCE = "tests/distributed/test_silence.py"
RANKS_RESUME = "tests/distributed/test_resume.py"
LOCAL = "tests/distributed/test_local.py"
READINESS = "tests/algorithm/test_readiness.py"
RESUME = "tests/training/test_resume.py"
SURVIVAL = "tests/training/test_survival.py"
RULE = "tests/methods/test_rule.py"
SENSITIVITY = (
    "tests/test_sensitivity.py::test_one_record_moves_the_mean_by_no_more_than_is_accounted"
)
ONE_USER = (
    "tests/test_sensitivity.py::"
    "test_one_user_moves_the_mean_by_no_more_than_is_accounted_however_much_it_holds"
)
STATE = "tests/algorithm/test_state.py"
TABLE = "tests/accounting/test_table.py"
THEORY = "tests/algorithm/test_theory.py"
TRAIN = "tests/training/test_train.py"
VOTES = "tests/test_sensitivity.py::test_one_record_moves_one_teachers_vote"
WHITENING = "tests/methods/test_whitening.py"
CACHE = "tests/data/test_cache.py"
FROZEN = "tests/models/test_frozen.py"
PATCHES = "tests/models/test_patches.py"
VERIFY = "tests/releasing/test_verify.py"
RELEASE = "tests/releasing/test_release.py"
ATTACKS = "tests/releasing/test_attacks.py"

DROPOUT = f"{HOLES}::Test1Dropout"
SEEDS = f"{HOLES}::Test2Noise"
SUMS = f"{HOLES}::Test3Sums"
FINITE = f"{HOLES}::Test4NotFinite"
HOLES_CONVEX = f"{HOLES}::Test5Convex"
LAST = f"{HOLES}::Test6LastIterate"
LEFTOVERS = f"{HOLES}::Test8Leftovers"
CARRIES = f"{HOLES}::Test11State"
REPLAY = f"{HOLES}::Test12Replay"
RESUMED = f"{HOLES}::Test13Resume"
ISOLATION = f"{HOLES}::TestIsolation"
HOSTILE = f"{HOLES}::TestHostile"
HOLES_LEDGER = f"{HOLES}::Test14Ledger"

CORE = f"{MUTANTS}::TestCore"
LATTICE = f"{MUTANTS}::TestLattice"
LEDGER_FILE = f"{MUTANTS}::TestLedgerFile"
SAMPLED = f"{MUTANTS}::TestSampling"
PLACES = f"{MUTANTS}::TestPlaces"
DECISIONS = f"{MUTANTS}::TestDecisions"
LANES = f"{MUTANTS}::TestLanes"
KEPT = f"{MUTANTS}::TestState"
METHODS = f"{MUTANTS}::TestMethods"
STEP = f"{MUTANTS}::TestStep"
RUN = f"{MUTANTS}::TestRun"

MECHANISM = [
    Mutation(
        "mechanism.py",
        "what is published is not rounded to the grid",
        "mine.mul_(s / g).round_().mul_(g)",
        "mine.mul_(s)",
        ("tests/test_mutants.py::TestLattice",),
    ),
    Mutation(
        "algorithm/reachable.py",
        "generators of the model are not set for an example",
        "            source.set((number + 0x9E3779B1 * (index + 1)) % 2**32)\n",
        "            pass\n",
        ("tests/algorithm/test_reachable.py",),
    ),
    Mutation(
        "algorithm/passes.py",
        "what a pass shares with the loss is not looked at after an example",
        "            self.owner.shared.put_back(strict=True)\n",
        "            pass\n",
        ("tests/algorithm/test_reachable.py",),
    ),
    Mutation(
        "algorithm/executor.py",
        "what changes between steps is not noticed",
        "if self.shared is not None and (what := self.shared.difference()):",
        "if self.shared is not None and (what := None):",
        ("tests/algorithm/test_reachable.py",),
    ),
    Mutation(
        "algorithm/reachable.py",
        "objects of C code are taken for transparent",
        "            if not _transparent(kind):\n",
        "            if False:\n",
        ("tests/algorithm/test_reachable.py",),
    ),
    Mutation(
        "mechanism.py",
        "the bound is off by 1e-6",
        "self.limit = self.total.new_tensor(clip) * (1.0 - slack)",
        "self.limit = self.total.new_tensor(clip) * (1.0 + 1e-6)",
        (BOUND,),
    ),
    Mutation(
        "mechanism.py",
        "no slack for the rounding of norms",
        "self.limit = self.total.new_tensor(clip) * (1.0 - slack)",
        "self.limit = self.total.new_tensor(clip)",
        (BOUND,),
    ),
    Mutation(
        "mechanism.py",
        "nothing is clipped",
        "torch.where(reached > self.limit, self.limit / least, factors)",
        "factors.clone()",
        (BOUND,),
    ),
    Mutation(
        "mechanism.py",
        "norms in float32 (add)",
        "mine, block = x[:, columns].double(), self._block(columns)",
        "mine, block = x[:, columns].float(), self._block(columns)",
        (BOUND, CORE),
    ),
    Mutation(
        "parts.py",
        "norms of products in float32",
        "norms: Tensor = torch.linalg.vector_norm(x, dim=-1)",
        "norms: Tensor = torch.linalg.vector_norm(x.float(), dim=-1).double()",
        (
            "tests/algorithm/test_bound.py",
            "tests/algorithm/test_taps.py",
            "tests/test_mutants.py::TestCore",
        ),
    ),
    Mutation(
        "parts.py",
        "norms of written parts in float32",
        "torch.linalg.vector_norm(columns.double(), dim=1)",
        "torch.linalg.vector_norm(columns.float(), dim=1).double()",
        (
            "tests/algorithm/test_bound.py",
            "tests/algorithm/test_taps.py",
            "tests/methods/test_dpsgd.py",
        ),
    ),
    Mutation(
        "mechanism.py",
        "columns that begin in a block are taken to end in it",
        "return block if columns.stop <= self._ends[block] else None",
        "return block",
        (BOUND, CORE),
    ),
    Mutation(
        "mechanism.py",
        "norms of a block without all of its parameters",
        "            squares[:, block] += mine\n",
        "            squares[:, block] = mine\n",
        (
            "tests/algorithm/test_layers.py",
            "tests/algorithm/test_taps.py",
        ),
    ),
    Mutation(
        "mechanism.py",
        "rows that are not finite are not set to 0 (add)",
        "pieces = pieces.masked_fill(broken[:, blocks].unsqueeze(-1), 0.0)",
        "pieces.clone()",
        (BOUND,),
    ),
    Mutation(
        "mechanism.py",
        "rows that are not finite are not set to 0 (parts)",
        "                part.clear(broken[:, block])\n",
        "                pass\n",
        (
            "tests/algorithm/test_bound.py",
            "tests/algorithm/test_taps.py",
        ),
    ),
    Mutation(
        "mechanism.py",
        "a row that is not finite keeps its factor",
        "torch.where(finite, factors, 0.0)",
        "torch.where(finite, factors, 1.0)",
        (BOUND,),
    ),
    Mutation(
        "parts.py",
        "squares of a product's sides may leave the range of float64",
        "    if x.dtype != torch.float64:\n",
        "    if True:\n",
        (
            "tests/algorithm/test_bound.py",
            "tests/test_mutants.py::TestCore",
        ),
    ),
    Mutation(
        "mechanism.py",
        "clips whose square is 0 or infinite are accepted",
        "if not LEAST <= c <= MOST:",
        "if False:",
        (BOUND,),
    ),
    Mutation(
        "mechanism.py",
        "sums in float32 (add)",
        "total[columns] += factors[:, block] @ pieces.flatten(1)\n",
        "total[columns] += (factors[:, block].float() @ pieces.flatten(1).float())\n",
        (SUMS, SENSITIVITY, CORE),
    ),
    Mutation(
        "parts.py",
        "sums of products in float32",
        "            sums.addmm_(left, right)\n",
        "            sums += (left.float() @ right.float()).double()\n",
        (
            "tests/test_holes.py::Test3Sums",
            "tests/algorithm/test_layers.py",
        ),
    ),
    Mutation(
        "mechanism.py",
        "partial sums of lanes count twice",
        "self.total += other.total",
        "self.total += 2.0 * other.total",
        (AGREES,),
    ),
    Mutation(
        "mechanism.py",
        "the caller's autocast is left on",
        "            if torch.is_autocast_enabled(device):\n",
        "            if False:\n",
        (SUMS,),
    ),
    Mutation(
        "mechanism.py",
        "noise times 0.9",
        "torch.from_numpy(source.gaussian(len(total))).to(total.device)",
        "torch.from_numpy(source.gaussian(len(total))).to(total.device) * 0.9",
        (NOISE,),
    ),
    Mutation(
        "mechanism.py",
        "noise rounded to float32",
        "torch.from_numpy(source.gaussian(len(total))).to(total.device)",
        "torch.from_numpy(source.gaussian(len(total))).float().double()",
        (LATTICE,),
    ),
    Mutation(
        "mechanism.py",
        "one draw of noise for all entries",
        "source.gaussian(len(total))).to(total.device)",
        "source.gaussian(1)).to(total.device).expand(len(total))",
        (NOISE,),
    ),
    Mutation(
        "mechanism.py",
        "no rounding to the lattice",
        "mine.mul_(noise / s).round_().add_((mean / (divisor * s)).round_())",
        "mine.mul_(noise / s).add_(mean / (divisor * s))",
        (LATTICE,),
    ),
    Mutation(
        "mechanism.py",
        "only the mean is rounded to the lattice",
        "mine.mul_(noise / s).round_().add_((mean / (divisor * s)).round_())",
        "mine.mul_(noise / s).add_((mean / (divisor * s)).round_())",
        (LATTICE,),
    ),
    Mutation(
        "mechanism.py",
        "only the noise is rounded to the lattice",
        "mine.mul_(noise / s).round_().add_((mean / (divisor * s)).round_())",
        "mine.mul_(noise / s).round_().add_(mean / (divisor * s))",
        (LATTICE,),
    ),
    Mutation(
        "lattice.py",
        "rounding costs nothing",
        "s * math.sqrt(block.size) + (2.0**-51 * terms + 2.0**-31) * terms * clip / divisor",
        "0.0 * s * block.size * clip",
        (SENSITIVITY, LATTICE),
    ),
    Mutation(
        "lattice.py",
        "rounding to the lattice costs nothing",
        "s * math.sqrt(block.size) + (",
        "0.0 * s * block.size + (",
        (SENSITIVITY, LATTICE),
    ),
    Mutation(
        "lattice.py",
        "rounding costs s an entry only once",
        "s * math.sqrt(block.size) + (",
        "s + 0.0 * block.size + (",
        (SENSITIVITY, LATTICE),
    ),
    Mutation(
        "lattice.py",
        "rounding of sums costs nothing",
        " + (2.0**-51 * terms + 2.0**-31) * terms * clip / divisor",
        "",
        (LATTICE,),
    ),
    Mutation(
        "lattice.py",
        "a spacing that is no power of two",
        "2.0 ** math.floor(math.log2(FINE * clip / (divisor * math.sqrt(size))))",
        "FINE * clip / (divisor * math.sqrt(size))",
        (LATTICE,),
    ),
]

STREAM = [
    Mutation(
        "noise.py",
        "the noise stream has a constant key",
        "key = secrets.randbits(KEY_BITS) if seed is None",
        "key = 12345 if seed is None",
        (NOISE, SEEDS),
    ),
    Mutation(
        "noise.py",
        "correlated noise forgets a step",
        "[x, *self._earlier][: len(others)]",
        "[x, *self._earlier][: len(others) - 1]",
        (CORRELATED, BANDS),
    ),
    Mutation(
        "noise.py",
        "correlated noise starts anew at resume",
        'self._earlier = [x.numpy().copy() for x in kept["earlier"]]',
        "self._earlier = []",
        (CORRELATED,),
    ),
    Mutation(
        "noise.py",
        "a loaded state goes on with old correlated noise",
        "self._step, self._due, self._earlier = step, False, []",
        "self._step, self._due = step, False",
        (CORRELATED, BANDS),
    ),
    Mutation(
        "noise.py",
        "a step may draw correlated noise twice",
        "        self._due = False\n        leading",
        "        leading",
        (BANDS,),
    ),
    Mutation(
        "noise.py",
        "columns are not normalised",
        "drawn: np.ndarray = np.multiply(x, norm)",
        "drawn = x.copy()",
        (BANDS, CORRELATED),
    ),
    Mutation(
        "accounting/matrix.py",
        "steps whose columns overlap are charged as if they did not",
        "        found += np.bincount(numbers[:-lag] % period, pairs, period)\n",
        "",
        (MATRIX,),
    ),
    Mutation(
        "accounting/matrix.py",
        "reshuffled partitions count as fixed",
        ' or header.unit != "example" or header.reshuffle',
        ' or header.unit != "example"',
        (MATRIX,),
    ),
    Mutation(
        "accounting/matrix.py",
        "the first group stands for all",
        "dearest = table.max(axis=0)",
        "dearest = table[0]",
        (MATRIX,),
    ),
    Mutation(
        "accounting/matrix.py",
        "stretches that were taken again are numbered on",
        "if parts and run.start != expected:",
        "if False:",
        (MATRIX,),
    ),
    Mutation(
        "accounting/composition.py",
        "more bands than groups",
        "if len(header.coefficients) > header.groups:",
        "if False:",
        (MATRIX,),
    ),
    Mutation(
        "accounting/guarantee.py",
        "bounds for independent noise speak of correlated",
        "    if len(header.coefficients) > 1:\n",
        "    if False:\n",
        (MATRIX,),
    ),
    Mutation(
        "partition.py",
        "groups do not take turns",
        "coins &= self._group == step % self.groups",
        "pass",
        (CORRELATED,),
    ),
    Mutation(
        "methods/bands.py",
        "the rate of a group is that of everybody",
        '"rate": header.rate * bands}',
        '"rate": header.rate}',
        (CORRELATED,),
    ),
    Mutation(
        "training/step.py",
        "a loaded state keeps its place in correlated noise",
        "        self.noise.restart(self.engine.steps)\n",
        "",
        (CORRELATED,),
    ),
    Mutation("noise.py", "a key of 32 bits", "KEY_BITS = 128", "KEY_BITS = 32", (NOISE,)),
    Mutation(
        "noise.py",
        "noise drawn in float32",
        "return self._here.standard_normal(size)",
        "return self._here.standard_normal(size, dtype=np.float32).astype(np.float64)",
        (LATTICE,),
    ),
    Mutation(
        "noise.py",
        "a seeded stream is called private",
        "self.private = seed is None",
        "self.private = True",
        (NOISE,),
    ),
    Mutation(
        "noise.py",
        "a resumed seeded stream is called private",
        'self.private = self.private and bool(kept["private"])',
        "self.private = True",
        (NOISE,),
    ),
    Mutation(
        "noise.py",
        "a stream can be copied",
        'raise InputError(\n            "a run cannot be copied',
        'return InputError(\n            "a run cannot be copied',
        (NOISE,),
    ),
    Mutation(
        "noise.py",
        "a stream works in a forked process",
        "if os.getpid() != self._process:",
        "if False:",
        (NOISE,),
    ),
    Mutation(
        "noise.py",
        "coins that are true too often",
        "self._here.random(size) < probability",
        "self._here.random(size) < 1.2 * probability",
        (PARTITION,),
    ),
]

LEDGERS = [
    Mutation(
        "ledger/writer.py",
        "steps after the end are recorded",
        "        if self._ended:\n",
        "        if False:\n",
        (HOLES_LEDGER,),
    ),
    Mutation(
        "ledger/lines.py", "unknown keys are read", "if unknown:", "if False:", (LEDGER_FILE,)
    ),
    Mutation(
        "ledger/lines.py", "missing keys are made up", "if missing:", "if False:", (LEDGER_FILE,)
    ),
    Mutation(
        "ledger/lines.py",
        "a ledger of another format is read",
        'if record.pop("format") != FORMAT:',
        'if record.pop("format") is None:',
        (LEDGER_FILE,),
    ),
    Mutation(
        "ledger/records.py",
        "unknown methods, memories and samplings are read",
        "if getattr(self, name) not in options:",
        "if False:",
        (LEDGER_FILE,),
    ),
    Mutation(
        "ledger/lines.py",
        "the chain of hashes is not looked at",
        "if found != previous:",
        "if False:",
        (LEDGER,),
    ),
    Mutation(
        "ledger/ledger.py",
        "steps of a file may leave a gap",
        "0 <= number_of <= reached",
        "0 <= number_of",
        (LEDGER_FILE,),
    ),
    Mutation(
        "ledger/ledger.py",
        "steps of a file may follow its end",
        "setting is not None and not ledger.closed:",
        "setting is not None:",
        (LEDGER_FILE,),
    ),
    Mutation(
        "ledger/ledger.py",
        "an end may say any number of steps",
        'not ledger.closed and record["steps"] == ledger.steps',
        "not ledger.closed",
        (LEDGER_FILE,),
    ),
    Mutation(
        "ledger/lines.py",
        "numbers of a file may be negative or infinite",
        "if not all(math.isfinite(x) and x >= 0 for x in values[name]):",
        "if False:",
        (LEDGER_FILE,),
    ),
    Mutation(
        "ledger/ledger.py",
        "steps that are taken again are merged with the first ones",
        "== setting and self.position == start:",
        "== setting:",
        (LEDGER, f"{REPLAY}::test_rewinding_draws_fresh_noise_and_counts_the_steps_again"),
    ),
    Mutation(
        "ledger/writer.py",
        "nothing is brought to the disk itself",
        "sync_data(self._file.fileno())",
        "self._file.fileno()",
        (HOLES_LEDGER,),
    ),
    Mutation(
        "ledger/writer.py",
        "the name of a new ledger is not brought to the disk",
        "            sync_folder(self._path.parent)\n",
        "            pass\n",
        (LEDGER_FILE,),
    ),
    Mutation(
        "ledger/writer.py",
        "exports are not brought to the disk",
        "self.ledger.exports.append(what)\n            self.sync()",
        "self.ledger.exports.append(what)",
        (HOLES_LEDGER,),
    ),
    Mutation(
        "ledger/writer.py",
        "voids are not brought to the disk",
        "self.ledger.voids.append(why)\n            self.sync()",
        "self.ledger.voids.append(why)",
        (LEDGER_FILE,),
    ),
    Mutation(
        "ledger/writer.py",
        "the end is not brought to the disk",
        "self.sync()\n            self._file.close()",
        "self._file.close()",
        (HOLES_LEDGER,),
    ),
    Mutation(
        "ledger/writer.py",
        "steps are not brought to the disk before they are taken",
        "self.ledger.position if number is None else number)\n        self.sync()",
        "self.ledger.position if number is None else number)",
        (LEDGER_FILE,),
    ),
    Mutation(
        "ledger/writer.py",
        "a line does not overwrite what a failed write has left",
        "            self._file.truncate(end)\n            self._file.seek(end)\n",
        "",
        (f"{SURVIVAL}::test_a_step_that_cannot_be_recorded_is_not_taken",),
    ),
    Mutation(
        "ledger/writer.py",
        "a ledger that has ended is reopened",
        "if found.closed and not repeats:",
        "if False:",
        (f"{RESUME}::test_a_ledger_that_has_ended_is_not_reopened",),
    ),
    Mutation(
        "ledger/writer.py",
        "a ledger of another run is reopened",
        "if found.header != self.ledger.header:",
        "if False:",
        (LEDGER_FILE,),
    ),
    Mutation(
        "ledger/writer.py",
        "what voids a run is lost as its file is opened",
        "for why in self.ledger.voids:\n            self._write",
        "for why in ():\n            self._write",
        (LEDGER_FILE,),
    ),
    Mutation(
        "ledger/writer.py",
        "what voids a run is lost as its file is reopened",
        "found.voids += [why for why in self.ledger.voids if why not in found.voids]",
        "found.voids += []",
        (LEDGER_FILE,),
    ),
]

RELEASES = [
    Mutation(
        "releasing/hidden.py",
        "the model is forgotten before the rest",
        "key=lambda path: path.name == MODEL",
        "key=lambda path: path.name != MODEL",
        (RELEASE,),
    ),
    Mutation(
        "releasing/making.py",
        "another release in the run's folder is taken for the run's own",
        "all(body[name] == wanted[name] for name in names)",
        "True",
        (RELEASE,),
    ),
    Mutation(
        "releasing/making.py",
        "a release in the run's folder that does not verify is taken for the run's own",
        "    if not verify(folder).ok:\n        return None\n",
        "",
        (RELEASE,),
    ),
    Mutation(
        "releasing/found.py",
        "a copy that went on with fresh noise is a copy",
        " or ledger.forks != earlier.forks:",
        ":",
        (ATTACKS,),
    ),
    Mutation(
        "releasing/found.py",
        "a copy that left another model is a copy",
        " and len(models) < 2",
        "",
        (ATTACKS,),
    ),
    Mutation(
        "training/recorder.py",
        "a run that goes on with fresh noise does not say so",
        "                writer.fork(fork)\n",
        "                pass\n",
        ("tests/distributed/test_resume.py",),
    ),
    Mutation(
        "accounting/several.py",
        "shards of two runs are the same",
        'units[0] != "shard"',
        'units[0] != "user"',
        (ATTACKS,),
    ),
    Mutation(
        "seal.py",
        "a name takes the place of the content",
        "both = identity(key, content) + identity(key, second)",
        "both = identity(key, second) + identity(key, second)",
        (ATTACKS,),
    ),
    Mutation(
        "runs/__init__.py",
        "another audit forgets what was refuted",
        'record["refuted"] or before.get("ever_refuted")',
        'record["refuted"]',
        (ATTACKS,),
    ),
    Mutation(
        "releasing/sources.py",
        "a ledger that was rewritten in memory is certified",
        "as_json() != result.privacy.as_json():",
        "as_json() is None:",
        (ATTACKS,),
    ),
    Mutation(
        "releasing/found.py",
        "a run that has lost its ledger is skipped",
        "    _refuse_lost(folder)\n    found",
        "    found",
        (ATTACKS,),
    ),
    Mutation(
        "releasing/verify.py",
        "what is claimed is not compared with the ledger",
        "if where := difference(body[name], value, name):",
        "if where := None:",
        (VERIFY,),
    ),
    Mutation(
        "releasing/verify.py",
        "a ledger without an end is verified",
        "    if not ledger.closed:\n",
        "    if False:\n",
        (f"{VERIFY}::test_a_ledger_without_its_end_is_noticed",),
    ),
    Mutation(
        "releasing/verify.py",
        "another iterate passes for the model of the run",
        'if not found == ledger.model == body["weights"]:',
        'if found != body["weights"]:',
        (f"{VERIFY}::test_the_model_is_the_one_that_the_run_left",),
    ),
    Mutation(
        "releasing/verify.py",
        "an unsigned release passes where a key was given",
        '        if wanted is not None:\n            problems.append(f"{CERTIFICATE}: is not',
        '        if False:\n            problems.append(f"{CERTIFICATE}: is not',
        (f"{VERIFY}::test_a_forgery_that_is_consistent_is_noticed_by_the_signature_alone",),
    ),
    Mutation(
        "releasing/verify.py",
        "any key will do",
        "    if wanted is not None and not verdict.pinned:\n",
        "    if False:\n",
        (f"{VERIFY}::test_a_signature_by_another_key_is_not_the_pinned_one",),
    ),
    Mutation(
        "releasing/verify.py",
        "what a newer version made is guessed",
        "newer = _version(made) > _version(__version__)",
        "newer = False",
        (f"{VERIFY}::test_what_a_newer_version_made_is_refused",),
    ),
    Mutation(
        "releasing/certificate.py",
        "the digest leaves out the ledger",
        "if name not in SEALS}",
        'if name not in (*SEALS, "ledger")}',
        (f"{VERIFY}::test_the_signature_is_over_everything",),
    ),
    Mutation(
        "releasing/sources.py",
        "an interrupted run is released",
        "    if not ledger.closed:\n",
        "    if False:\n",
        (f"{RELEASE}::test_a_run_that_was_interrupted_is_refused",),
    ),
    Mutation(
        "releasing/sources.py",
        "a run whose ε was refuted is released",
        "    if audit and (\n",
        "    if not audit and (\n",
        (f"{RELEASE}::test_a_run_whose_epsilon_was_refuted_is_refused",),
    ),
    Mutation(
        "releasing/making.py",
        "weights that the run did not leave are written",
        "if hash_of_file(part / MODEL) != source.ledger.model:",
        "if False:",
        (f"{RELEASE}::test_a_model_that_was_changed_after_training_is_refused",),
    ),
    Mutation(
        "weights.py",
        "the hash of weights leaves out their bytes",
        "            digest.update(chunk)\n",
        "",
        (RELEASE,),
    ),
    Mutation(
        "training/run.py",
        "the frozen part of a model is not bound to the ledger",
        "        step.whole = self.model\n",
        "",
        (f"{RELEASE}::test_the_whole_model_is_bound_as_it_is_saved",),
    ),
]

SAMPLING = [
    Mutation(
        "partition.py",
        "one coin for all examples",
        "coins = self.source.coins(self.examples, self.rate)",
        "coins = np.repeat(self.source.coins(1, self.rate), self.examples)",
        (PARTITION,),
    ),
    Mutation(
        "partition.py",
        "Poisson batches are cut to the expected size",
        "chosen = np.flatnonzero(_present(coins, self.absent))",
        "chosen = np.flatnonzero(_present(coins, self.absent))[: round(self.rate * self.examples)]",
        (PARTITION,),
    ),
    Mutation(
        "partition.py",
        "Poisson: an example's auxiliary depends on who else was drawn",
        "self.source.choices(self.examples, self.auxiliaries)[chosen]",
        "self.source.choices(len(chosen), self.auxiliaries)",
        (SENSITIVITY, SAMPLED),
    ),
    Mutation(
        "partition.py",
        "Poisson: auxiliaries are dealt evenly",
        "self.source.choices(self.examples, self.auxiliaries)[chosen]",
        "np.arange(len(chosen)) % self.auxiliaries",
        (PARTITION,),
    ),
    Mutation(
        "partition.py",
        "absent examples take part",
        "chosen if absent is None else chosen & ~absent",
        "chosen",
        (CANARIES,),
    ),
    Mutation(
        "users.py",
        "equal users are told apart",
        "numbers.setdefault(_named(u, i), len(numbers)) for i",
        "numbers.setdefault(f'{_named(u, i)} {i % 2}', len(numbers)) for i",
        (RESUMED, PARTITION),
    ),
    Mutation(
        "users.py",
        "equal numbers of two types are two users",
        "return _name(int(user)) if user.is_integer() else _not_nan(user)",
        "return _not_nan(user)",
        (SAMPLED,),
    ),
    Mutation(
        "users.py",
        "equal sets of two orders are two users",
        '("set", *sorted(known))',
        '("set", *known)',
        (SAMPLED,),
    ),
    Mutation(
        "users.py",
        "owners that do not equal themselves are accepted",
        'return f"number {user!r}" if user == user else None',
        'return f"number {user!r}"',
        (RESUMED,),
    ),
    Mutation(
        "users.py",
        "examples without an owner are accepted",
        "        if len(plain) != examples:\n",
        "        if False:\n",
        (PARTITION,),
    ),
    Mutation(
        "users.py",
        "examples that a mapping leaves out are the last user's",
        "        if (owner < 0).any():\n",
        "        if False:\n",
        (USERS,),
    ),
    Mutation(
        "users.py",
        "an example may have two owners",
        "                if owner[example] >= 0:\n",
        "                if False:\n",
        (USERS,),
    ),
    Mutation(
        "users.py",
        "what is random for an example follows from its row",
        "first.view(np.int64)[self.owner] + self.own * GOLDEN",
        "np.arange(len(self.owner)) * GOLDEN",
        (USERS,),
    ),
    Mutation(
        "users.py",
        "an example's key follows from how much others hold (sensitivity)",
        "first.view(np.int64)[self.owner] + self.own * GOLDEN",
        "first.view(np.int64)[self.owner] + np.arange(len(self.owner)) * GOLDEN",
        (ONE_USER,),
    ),
    Mutation(
        "partition.py",
        "each of a user's examples has a home of its own",
        "cell = home[owner] * self.batches",
        "cell = np.arange(len(owner)) % self.auxiliaries * self.batches",
        (PARTITION, ONE_USER),
    ),
    Mutation(
        "users.py",
        "where a user goes depends on how much users hold",
        "found[sorted(range(self.number), key=digests.__getitem__)]",
        "found[np.argsort(np.bincount(self.owner, minlength=self.number), kind='stable')]",
        (PARTITION, ISOLATION),
    ),
    Mutation(
        "users.py",
        "where a user goes depends on the order of the examples",
        "found[sorted(range(self.number), key=digests.__getitem__)]",
        "found[np.arange(self.number)]",
        (SAMPLED, ISOLATION),
    ),
    Mutation(
        "partition.py",
        "how much a user holds moves others' examples",
        "places(owner, score, users.number)",
        "np.argsort(np.argsort(score))",
        (ISOLATION, SAMPLED),
    ),
    Mutation(
        "methods/plan.py",
        "a fixed partition for users deals examples one by one",
        "if users is not None:",
        "if False:",
        (USERS,),
    ),
    Mutation(
        "training/ranks.py",
        "how much users hold decides the plan",
        "number = count(data) if users is None else users.number",
        "number = count(data)",
        (USERS, ONE_USER),
    ),
    Mutation(
        "training/loader.py",
        "crops of users' examples follow the row",
        "data = self.augment(data, part.keys, step)",
        "data = self.augment(data, part.indices, step)",
        (USERS, ONE_USER),
    ),
    Mutation(
        "training/ahead.py",
        "what a Dataset draws for users' examples follows the row",
        "return read(self.data, numbers, self.seed, step, keys)",
        "return read(self.data, numbers, self.seed, step, None)",
        (USERS, ONE_USER),
    ),
    Mutation(
        "partition.py",
        "reshuffling moves examples to other auxiliaries",
        "result.append(np.split(",
        "result.insert(epoch % 2 * len(result), np.split(",
        (PARTITION,),
    ),
    Mutation(
        "partition.py",
        "an example's teacher depends on how many others there are",
        "np.random.default_rng((self.seed, 3)).integers(self.shards, size=self.examples)",
        "np.random.default_rng((self.seed, 3)).permutation(self.examples) % self.shards",
        (PATE,),
    ),
    Mutation(
        "training/augment.py",
        "an example's crop depends on who else is there",
        "CHANGING, step, keys)",
        "CHANGING, step, np.arange(len(keys)) + len(keys))",
        (AUGMENT,),
    ),
    Mutation(
        "training/augment.py",
        "views depend on an example's place (sensitivity)",
        "CHANGING, step, keys)",
        "CHANGING, step, np.arange(len(keys)))",
        (SENSITIVITY,),
    ),
    Mutation(
        "training/augment.py",
        "views are the same at every step",
        "CHANGING, step, keys)",
        "CHANGING, keys)",
        (AUGMENT,),
    ),
    Mutation(
        "training/augment.py",
        "views are taken from the examples of others",
        "torch.stack(views, 1)",
        "torch.cat(views).view(len(x), self.views, *x.shape[1:])",
        (AUGMENT,),
    ),
    Mutation(
        "training/augment.py",
        "labels go to the views of others",
        "t.repeat_interleave(self.views, 0)",
        "t.repeat(self.views, *[1] * (t.dim() - 1))",
        (AUGMENT,),
    ),
    Mutation(
        "training/offered.py",
        "views without their loss",
        "over_views(loss, train.views)",
        "over_views(loss, 1)",
        (AUGMENT,),
    ),
    Mutation(
        "methods/method.py",
        "views that are all the same are accepted",
        "self.train.views > 1 and not self.train.augment",
        "False",
        (AUGMENT,),
    ),
]

EXECUTOR = [
    Mutation(
        "algorithm/executor.py",
        "models are not asked whether they are ready (GEP too)",
        "        refuse_unready(model)\n",
        "",
        (READINESS, f"{DPSGD}::test_batch_norm_is_refused", KEPT),
    ),
    Mutation(
        "algorithm/executor.py",
        "copies are made of the model as the caller has changed it",
        "made = replica(self.base, self._common)",
        "made = replica(self.model, self._common)",
        (HOLES_CONVEX, KEPT),
    ),
    Mutation(
        "algorithm/executor.py",
        "tensors that the first call makes are not kept",
        "self.kept.add({",
        "str({",
        ("tests/algorithm/test_reachable.py",),
    ),
    Mutation(
        "algorithm/reachable.py",
        "threads run at the same time although code writes to what they share",
        "self.writes |= changes(",
        'str.format("", ',
        ("tests/algorithm/test_reachable.py",),
    ),
    Mutation(
        "algorithm/names.py",
        "what a function imports is not walked",
        "        if not path or is_library(path) or installed(path):\n",
        "        if True:\n",
        ("tests/algorithm/test_reachable.py",),
    ),
    Mutation(
        "algorithm/executor.py",
        "a model that cannot be copied keeps what the caller has changed",
        "if self.base is self.model:",
        "if False:",
        (KEPT,),
    ),
    Mutation(
        "algorithm/ways.py",
        "a model that cannot be copied runs on lanes",
        "    if copy is owner.model or owner.shared",
        "    if owner.shared",
        (LANES,),
    ),
    Mutation(
        "algorithm/executor.py",
        "gradients are left on the model",
        "            parameter.grad = None\n",
        "            pass\n",
        (KEPT,),
    ),
    Mutation(
        "algorithm/executor.py",
        "θ is not compared after a pass",
        "if not same_bits(self.layout.gather(), theta):",
        "if False:",
        (KEPT,),
    ),
    Mutation(
        "algorithm/executor.py",
        "what the loss leaves on the model itself is not noticed",
        "        if what := self.outside.difference():\n            raise Tainted(",
        "        if what := None:\n            raise Tainted(",
        (KEPT,),
    ),
    Mutation(
        "algorithm/executor.py",
        "no auxiliary is not computed again",
        "if chosen is not None and work.recompute(chosen, work.used()) != before:",
        "if False:",
        (CARRIES,),
    ),
    Mutation(
        "algorithm/executor.py",
        "only the first step computes an auxiliary again",
        "again = not self.checked or not secrets.randbelow(AGAIN)",
        "again = not self.checked",
        (KEPT,),
    ),
    Mutation(
        "algorithm/executor.py",
        "nothing is compared by content after the first step",
        ("                self.kept.check()\n                self.checked = True"),
        "                self.checked = True",
        (KEPT,),
    ),
    Mutation(
        "algorithm/executor.py",
        "an empty first batch stands for the check of the first step",
        "if not self.checked and any(batch.sizes):",
        "if not self.checked:",
        (KEPT,),
    ),
    Mutation(
        "algorithm/executor.py",
        "nothing is compared by content at the end",
        "        self._restore()\n        self.kept.check()\n",
        "        self._restore()\n",
        (CARRIES, KEPT),
    ),
    Mutation(
        "algorithm/executor.py",
        "attributes are not set back at the end",
        "        self._restore()\n        self.kept.check()\n",
        "        self.kept.check()\n",
        (HOLES_CONVEX,),
    ),
    Mutation(
        "algorithm/ways.py",
        "equal places are not tried (mapped)",
        "classes = equal_places(contributions, batch.data, size, rows, tries)",
        "classes = 1",
        (PLACES,),
    ),
    Mutation(
        "algorithm/ways.py",
        "equal places are not tried (taps)",
        "    if not batch.fixed:\n        classes = equal_places(every",
        "    if batch.whole == ():\n        classes = equal_places(every",
        (PLACES,),
    ),
    Mutation(
        "algorithm/ways.py",
        "places are compared under the model's own weights (mapped)",
        "            weights = made_up_weights(layout.tensors, trial)\n            held",
        "            weights = list(layout.tensors)\n            held",
        (ISOLATION, PLACES),
    ),
    Mutation(
        "algorithm/ways.py",
        "places are compared under the model's own weights (taps)",
        "        weights = made_up_weights(layout.tensors, trial)\n        held.put_back()\n"
        "        key =",
        "        weights = list(layout.tensors)\n        held.put_back()\n        key =",
        (ISOLATION, PLACES),
    ),
    Mutation(
        "algorithm/places.py",
        "rows are left over at the end of memory",
        "ROWS = 64",
        "ROWS = 16",
        (PLACES,),
    ),
    Mutation(
        "algorithm/ways.py",
        "several cores cut the memory of what changes places",
        "return nullcontext() if batch.fixed else one_core()",
        "return nullcontext()",
        (HOSTILE,),
    ),
    Mutation(
        "algorithm/ways.py",
        "rows that are mixed are mapped (taps)",
        "if classes is None or not unmoved(every, batch.data, size, rows, turned):",
        "if classes is None:",
        (HOSTILE,),
    ),
    Mutation(
        "algorithm/places.py",
        "rows that are exchanged are not compared",
        "if any(after[i] != before.rows[i] for i in (~out).nonzero().flatten().tolist()):",
        "if False:",
        (HOSTILE,),
    ),
    Mutation(
        "algorithm/places.py",
        "rows are not turned round",
        "shifts = [s * classes % rows for s in (1, 5, -1)] if classes else []",
        "shifts: list[int] = []",
        (PLACES,),
    ),
    Mutation(
        "algorithm/rules.py",
        "functions are mapped by rules of their own",
        'if not getattr(_own, "allowed", False):',
        "if False:",
        (HOSTILE,),
    ),
    Mutation(
        "algorithm/rules.py",
        "who ends mapping lets the rules of others in",
        "_unless_foreign if _mapping else _INFO",
        "_unless_foreign if change > 0 else _INFO",
        (HOSTILE,),
    ),
    Mutation(
        "algorithm/rules.py",
        "what differs by micro-batch is taken for the same",
        "if any(dim is not None for dim in in_dims[len(mapped) :]):",
        "if False:",
        ("tests/algorithm/test_normalised.py", ATTENTION),
    ),
    Mutation(
        "algorithm/attention.py",
        "masks are left out",
        "return KERNEL(q, k, v, 0.0, causal, attn_mask=mask, scale=scale)",
        "return KERNEL(q, k, v, 0.0, causal, scale=scale)",
        (ATTENTION,),
    ),
    Mutation(
        "algorithm/rules.py",
        "the library's own rule lets those of other threads in",
        "_own = threading.local()",
        "_own = type(threading)('own')",
        (HOSTILE,),
    ),
    Mutation(
        "training/depends.py",
        "a library that computes otherwise goes unnoticed at a resume",
        "        _tried(),\n",
        "",
        (RESUME,),
    ),
    Mutation(
        "distributed/world.py",
        "a store that is silent is asked without an end",
        "in_time(lambda: self._asked(others), ASKING)",
        "self._asked(others)",
        (SILENCE,),
    ),
    Mutation(
        "algorithm/places.py",
        "places that differ pass for equal",
        "if all(row == found.rows[i % classes] for i, row in enumerate(found.rows))",
        "if found",
        (PLACES,),
    ),
    Mutation(
        "algorithm/places.py",
        "of a row only its first numbers are compared",
        "known.update(row.data)",
        "known.update(row.data[:4])",
        (PLACES,),
    ),
    Mutation(
        "algorithm/places.py",
        "only the last tensor must be finite",
        "finite = finite and bool(",
        "finite = bool(",
        (PLACES,),
    ),
    Mutation(
        "algorithm/taps.py",
        "slopes are not compared where places are",
        "            yield call.slope\n",
        "",
        (TAPS,),
    ),
    Mutation(
        "algorithm/gradients.py",
        "the backward pass is kept for a second derivative",
        "torch.autograd.grad(value, flat, allow_unused=True)",
        "torch.autograd.grad(value, flat, allow_unused=True, create_graph=True)",
        (TAPS,),
    ),
    Mutation(
        "algorithm/places.py",
        "trials that show nothing count",
        "if not found.finite or not found.any:",
        "if False:",
        (PLACES,),
    ),
    Mutation(
        "algorithm/places.py",
        "places are trusted though no trial counted",
        "return left[0] if left and counted == tries else None",
        "return left[0] if left else None",
        (PLACES,),
    ),
    Mutation(
        "algorithm/ways.py",
        "rows of a chunk depend on the batch (mapped)",
        "batch.fixed else rows_of(owner.auxiliaries, most)\n    if layout.size",
        "batch.fixed else rows_of(len(batch.sizes), most)\n    if layout.size",
        (PLACES,),
    ),
    Mutation(
        "algorithm/ways.py",
        "rows of a chunk depend on the batch (taps)",
        "batch.fixed else rows_of(owner.auxiliaries, most)\n    if taps.held",
        "batch.fixed else rows_of(len(batch.sizes), most)\n    if taps.held",
        (PLACES,),
    ),
    Mutation(
        "algorithm/ways.py",
        "sizes that are equal by chance are computed together",
        "if len(sizes) == 1 and (batch.alone or batch.fixed) else 0",
        "if len(sizes) == 1 else 0",
        (PLACES,),
    ),
    Mutation(
        "algorithm/batch.py",
        "auxiliaries that are alone by chance count as alone by construction",
        "(self.fixed or self.keys is not None) and set(self.whole or self.sizes) == {1}",
        "set(self.whole or self.sizes) == {1}",
        (PLACES,),
    ),
    Mutation(
        "algorithm/places.py",
        "places are compared on the data",
        "one = made_up(like, size, trial)",
        "one = tree_map(lambda t: t[:size], like)",
        (PLACES,),
    ),
    Mutation(
        "algorithm/places.py",
        "whether a model can be mapped is tried on the data",
        "given = made_up(like, size * rows, trial)",
        "given = tree_map(lambda t: t[: size * rows], like)",
        (DECISIONS,),
    ),
    Mutation(
        "algorithm/ways.py",
        "whether a model may run on lanes is tried on the data",
        "data = made_up(batch.data, size)\n    out",
        "data = batch.slice(0, size)\n    out",
        (DECISIONS,),
    ),
    Mutation(
        "algorithm/ways.py",
        "the order of images is tried on the data",
        "    data = made_up(batch.data, owner.expected)\n    try:",
        "    data = batch.slice(0, max(1, min(owner.expected, max(batch.sizes))))\n    try:",
        (DECISIONS,),
    ),
    Mutation(
        "algorithm/ways.py",
        "models that draw random numbers run on lanes",
        "return How(lanes=owner.outside.difference() is None and Globals() == before)",
        "return How(lanes=owner.outside.difference() is None)",
        (DROPOUT, DECISIONS),
    ),
    Mutation(
        "algorithm/ways.py",
        "a copy is called for the first time on the data",
        "looped(model, owner.loss, layout, made_up(batch.data, 1), out)",
        "looped(model, owner.loss, layout, batch.slice(0, 1), out)",
        (DECISIONS,),
    ),
    Mutation(
        "algorithm/places.py",
        "bits are compared as numbers",
        "np.array_equal(_words(a), _words(b))",
        "torch.allclose(a.cpu(), b.cpu(), equal_nan=True)",
        (PLACES,),
    ),
    Mutation(
        "algorithm/passes.py",
        "random numbers on lanes are not noticed",
        "if lanes and Globals() != before:",
        "if False:",
        (LANES,),
    ),
    Mutation(
        "algorithm/passes.py",
        "lanes share a module",
        "thread = threading.get_ident()",
        "thread = 0",
        (LANES,),
    ),
    Mutation(
        "algorithm/passes.py",
        "lanes run on the model itself",
        "            model = self.owner.copy()\n",
        "            model = self.owner.model\n",
        (LANES,),
    ),
    Mutation(
        "algorithm/state.py",
        "a lane's module is the model itself",
        "return copy.deepcopy(model, shared)",
        "return model",
        (CARRIES, LANES),
    ),
    Mutation(
        "algorithm/passes.py",
        "attributes are not set back between auxiliaries",
        "        self._end(held, shared=not lane)\n",
        "",
        (CARRIES, SENSITIVITY),
    ),
    Mutation(
        "algorithm/passes.py",
        "attributes are not set back between chunks",
        "        self._end(held)\n        if part is not out",
        "        if part is not out",
        (KEPT,),
    ),
    Mutation(
        "algorithm/passes.py",
        "dropout is keyed by place",
        "torch.from_numpy(self.batch.numbers)[places[filled].clamp_min(0)]",
        "torch.arange(int(filled.sum()))",
        (DROPOUT,),
    ),
    Mutation(
        "algorithm/passes.py",
        "generators are set by place",
        "int(self.batch.numbers[k])",
        "k",
        (DROPOUT,),
    ),
    Mutation(
        "algorithm/passes.py",
        "generators are not set before an auxiliary",
        "            self._begin(held, key)\n",
        "            pass\n",
        (DROPOUT,),
    ),
    Mutation(
        "algorithm/passes.py",
        "an auxiliary's examples stay where they lie in the batch",
        "data = tree_map(torch.clone, self.batch.slice(first, last))",
        "data = self.batch.slice(first, last)",
        (KEPT,),
    ),
    Mutation(
        "algorithm/passes.py",
        "classes of places go by place, not by example",
        "mine = self.batch.numbers % classes",
        "mine = np.arange(number) % classes",
        (PLACES,),
    ),
    Mutation(
        "algorithm/passes.py",
        "fillers of a chunk are summed",
        "gradient = gradient[real]",
        "gradient = gradient.clone()",
        (SENSITIVITY, DPSGD),
    ),
    Mutation(
        "mechanism.py",
        "fillers of a chunk are summed (taps)",
        "        factors.masked_fill_(~real.unsqueeze(1), 0.0)\n",
        "",
        ("tests/test_mutants.py::TestPlaces",),
    ),
    Mutation(
        "algorithm/passes.py",
        "the last chunk is shorter",
        "places = np.full((share, classes), -1)",
        "places = np.full((min(share, max(len(m) - first for m in members)), classes), -1)",
        (PLACES,),
    ),
    Mutation(
        "algorithm/randomness.py",
        "torch's generator is not set",
        "    torch.default_generator.manual_seed(number)\n",
        "",
        (DROPOUT,),
    ),
    Mutation(
        "algorithm/randomness.py",
        "Python's generator is not set",
        "    random.seed(number)\n",
        "",
        (SENSITIVITY, DECISIONS),
    ),
    Mutation(
        "algorithm/randomness.py",
        "numpy's generator is not set",
        "    np.random.seed(number)\n",
        "",
        (SENSITIVITY, DECISIONS),
    ),
    Mutation(
        "algorithm/reachable.py",
        "a buffer that an auxiliary assigns anew is set back, not refused",
        'self.quiet = kind in ("module", "_parameters", "_modules")',
        'self.quiet = kind in ("module", "_parameters", "_modules", "_buffers")',
        (READINESS, CARRIES),
    ),
    Mutation(
        "algorithm/reachable.py",
        "what auxiliaries put into a list is not noticed",
        "if not place.quiet or (strict",
        "if (strict",
        (CARRIES, ISOLATION, KEPT),
    ),
    Mutation(
        "algorithm/state.py",
        "changes in place are not noticed at every step",
        "if self.versions.get(name) != tensor._version:",
        "if False:",
        (KEPT,),
    ),
    Mutation(
        "algorithm/state.py",
        "tensors are not compared by content",
        "now = self._digests()\n",
        "now = self.content\n",
        (CARRIES, KEPT),
    ),
    Mutation(
        "algorithm/state.py",
        "frozen parameters are not looked at",
        "if not parameter.requires_grad:",
        "if False:",
        (CARRIES,),
    ),
    Mutation(
        "algorithm/state.py",
        "attributes are not compared by content",
        "if key not in UNSEEN",
        "if False and key",
        (CARRIES,),
    ),
    Mutation(
        "algorithm/state.py",
        "what a deque holds is not looked at",
        "if isinstance(value, tuple | list | deque):",
        "if isinstance(value, tuple | list):",
        (ISOLATION,),
    ),
    Mutation(
        "algorithm/state.py",
        "what slots hold is not looked at",
        "return [*slots, *(x for",
        "return [*(x for",
        (ISOLATION,),
    ),
    Mutation(
        "algorithm/state.py",
        "what callable objects hold is not looked at",
        "isinstance(value, PASSED_OVER) or depth",
        "isinstance(value, PASSED_OVER) or callable(value) or depth",
        (ISOLATION,),
    ),
    Mutation(
        "algorithm/reachable.py",
        "attributes are never set back",
        "        for place in touched:\n            place.write()\n",
        "",
        (CARRIES, HOLES_CONVEX),
    ),
    Mutation(
        "algorithm/readiness.py",
        "BatchNorm is accepted",
        "if isinstance(module, _BatchNorm):",
        "if False:",
        (READINESS,),
    ),
    Mutation(
        "algorithm/readiness.py",
        "InstanceNorm with running statistics is accepted",
        "if isinstance(module, _InstanceNorm) and module.track_running_stats:",
        "if False:",
        (READINESS,),
    ),
    Mutation(
        "algorithm/readiness.py",
        "embeddings that renormalise are accepted",
        "if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None:",
        "if False:",
        (f"{CARRIES}::test_an_embedding_that_renormalises_is_refused",),
    ),
    Mutation(
        "algorithm/readiness.py",
        "spectral norm is accepted",
        'if "SpectralNorm" in hooks or "_SpectralNorm" in parametrized:',
        "if False:",
        (READINESS,),
    ),
]

ENGINES = [
    Mutation(
        "algorithm/engine.py",
        "the divisor is the number of auxiliaries that are not empty",
        "publish.aggregate(layout, total, recipe.auxiliaries, setting, drawn)",
        "publish.aggregate(layout, total, max(1, sum(map(bool, batch.sizes))), setting, drawn)",
        (AGREES, SENSITIVITY),
    ),
    Mutation(
        "algorithm/engine.py",
        "a step is taken with another setting than was recorded",
        "self._step(batch, setting)",
        "self._step(batch, self.recipe.at(batch.epoch))",
        (LATTICE,),
    ),
    Mutation(
        "algorithm/engine.py",
        "auxiliaries take the mean penalty, not their own",
        "penalties = own or (setting.penalty,)",
        "penalties = (setting.penalty,)",
        (AGREES,),
    ),
    Mutation(
        "algorithm/recipe.py",
        "the penalties of each auxiliary are not recorded",
        "penalties=() if self.shared_penalty else penalties,",
        "penalties=(),",
        (TRAIN,),
    ),
    Mutation(
        "algorithm/engine.py",
        "nothing is compared at the end of a run",
        "        self.executor.check()\n",
        "        pass\n",
        (KEPT,),
    ),
    Mutation(
        "algorithm/engine.py",
        "noise without a source comes from the training seed",
        "self.noise = noise or Randomness()",
        "self.noise = noise or Randomness(seed)",
        (NOISE,),
    ),
    Mutation(
        "algorithm/publish.py",
        "the lattice is left out",
        "spacing=layout.spread(setting.spacing or (0.0,) * layout.count, padding=True),",
        "spacing=0.0,",
        (LATTICE,),
    ),
    Mutation(
        "algorithm/publish.py",
        "all blocks have the smallest noise",
        "noise=layout.spread(setting.noise),",
        "noise=layout.spread((min(setting.noise),) * layout.count),",
        (NOISE,),
    ),
    Mutation(
        "algorithm/memory.py",
        "the shared multiplier learns from gradients themselves",
        "gradient,\n            inverse=self._inverse(step),",
        "gradient.add_(self.multiplier.sub_(gradient[0] * 0.1)),\n"
        "            inverse=self._inverse(step),",
        (AGREES,),
    ),
    Mutation(
        "algorithm/theory.py",
        "what is diagnosed is what the step goes on with",
        "self.memory.moves(rows, gradient.clone(), self._now)",
        "self.memory.moves(rows, gradient, self._now)",
        (f"{THEORY}::test_diagnosing_leaves_the_model_as_it_would_be",),
    ),
    Mutation(
        "methods/dpsgd/engine.py",
        "the divisor is the number of sampled examples (dpsgd)",
        "aggregate(self.layout, total, self.expected, setting, drawn)",
        "aggregate(self.layout, total, max(1, len(batch.sizes)), setting, drawn)",
        (DPSGD, SENSITIVITY),
    ),
    Mutation(
        "methods/dpsgd/engine.py",
        "each layer may have the whole clip",
        "(clip[0] / len(sizes) ** 0.5,)",
        "(clip[0],)",
        (DPSGD,),
    ),
    Mutation(
        "methods/optimizers.py",
        "a loaded state forgets how it lies in memory",
        '        executor.load_state_dict(state["executor"])\n',
        "        pass\n",
        (f"{DPSGD}::test_state_continues_bit_for_bit",),
    ),
    Mutation(
        "models/frozen.py",
        "a text's features depend on which others there are",
        "rows = TEXTS if frozen.together(cut, TEXTS, full) else 1",
        "rows = TEXTS",
        (f"{MUTANTS}::test_texts_are_computed_together_only_if_places_are_equal",),
    ),
    Mutation(
        "methods/dpsgd/engine.py",
        "nothing is compared at the end of a run (dpsgd)",
        "        self.executor.check()\n",
        "        pass\n",
        (KEPT,),
    ),
    Mutation(
        "methods/gep/engine.py",
        "GEP's noise times 0.9",
        "noise=sigma, spacing=s,",
        "noise=0.9 * sigma, spacing=s,",
        (GEP, LATTICE),
    ),
    Mutation(
        "methods/gep/engine.py",
        "GEP's lattice is left out",
        "noise=sigma, spacing=s,",
        "noise=sigma, spacing=0.0 * s,",
        (LATTICE,),
    ),
    Mutation(
        "methods/gep/engine.py",
        "the divisor is the number of sampled examples (gep)",
        "divisor=self.plan.header.auxiliaries,",
        "divisor=max(1, len(batch.sizes)),",
        (GEP, SENSITIVITY),
    ),
    Mutation(
        "methods/gep/engine.py",
        "GEP's directions come from private examples",
        "            basis = self.basis()\n",
        "            if sum(batch.sizes) > self.method.directions:\n"
        "                self.anchors = batch.data\n"
        "            basis = self.basis()\n",
        (GEP, METHODS),
    ),
    Mutation(
        "methods/gep/engine.py",
        "GEP's directions draw from the caller's generators",
        "            seeded(self.seed, self.steps, -1)\n",
        "            pass\n",
        (ISOLATION, METHODS),
    ),
    Mutation(
        "methods/gep/engine.py",
        "GEP's directions are computed on the model itself",
        "vectorised(self.executor.copy(), self.loss",
        "vectorised(self.model, self.loss",
        (ISOLATION, METHODS),
    ),
    Mutation(
        "methods/gep/engine.py",
        "GEP splits only the rows that are there",
        "whole=True,",
        "whole=False,",
        (PLACES,),
    ),
    Mutation(
        "methods/gep/engine.py",
        "nothing is compared at the end of a run (gep)",
        "        self.executor.check()\n",
        "        pass\n",
        (KEPT,),
    ),
    Mutation(
        "methods/pate/engine.py",
        "PATE's threshold noise is halved",
        "                setting.noise,\n",
        "                (setting.noise[0] / 2, setting.noise[1]),\n",
        (PATE, METHODS),
    ),
    Mutation(
        "methods/pate/engine.py",
        "PATE's vote noise is halved",
        "                setting.noise,\n",
        "                (setting.noise[0], setting.noise[1] / 2),\n",
        (PATE,),
    ),
    Mutation(
        "methods/pate/engine.py",
        "PATE's lattice is left out",
        "noise=sigma, spacing=s,",
        "noise=sigma, spacing=0.0 * s,",
        (LATTICE,),
    ),
    Mutation(
        "methods/pate/engine.py",
        "PATE answers without noise",
        "int(counts.argmax())",
        "int(votes.argmax())",
        (PATE,),
    ),
    Mutation(
        "methods/pate/engine.py",
        "PATE compares with its threshold without noise",
        "if float(best) >=",
        "if float(votes.max()) >=",
        (PATE, METHODS),
    ),
    Mutation(
        "methods/pate/engine.py",
        "PATE answers more than is paid for",
        "elif len(self.answers) < self.limit:",
        "else:",
        (PATE,),
    ),
    Mutation(
        "methods/pate/engine.py",
        "generators are not set for each teacher",
        "        seeded(self.train.seed, 0, number)\n",
        "",
        (DROPOUT, VOTES),
    ),
    Mutation(
        "methods/pate/engine.py",
        "a teacher starts from what the one before has learnt",
        "teacher, loss = copy.deepcopy(self.start), 0.0",
        "teacher, loss = self.start, 0.0",
        (DROPOUT, VOTES),
    ),
    Mutation(
        "methods/pate/engine.py",
        "teachers that are coupled are not noticed",
        "if not torch.equal(self._votes(shard, True, number)[0], before):",
        "if False:",
        (ISOLATION,),
    ),
    Mutation(
        "methods/pate/engine.py",
        "a teacher can rewrite the queries of the next",
        "            queries = tree_map(torch.clone, queries)\n",
        "",
        (METHODS,),
    ),
    Mutation(
        "methods/rate.py",
        "the noise of a run is taken for smaller than it is",
        "* lr / FORGOTTEN * (1.0 + later)",
        "* lr / FORGOTTEN",
        (RULE,),
    ),
    Mutation(
        "methods/plan.py",
        "correlated noise is taken to lose what a clipped multiplier would",
        "if not self.recipe.bounded:",
        "if False:",
        (RULE,),
    ),
    Mutation(
        "training/ready.py",
        "noise may destroy what a network with frozen weights knows",
        "any(not p.requires_grad for p in learner.parameters())",
        "False",
        (RULE,),
    ),
    Mutation(
        "methods/rate.py",
        "gradients on inputs of a known length are clipped as others",
        "CLIP * math.hypot(length, 1.0) / UNIT",
        "CLIP",
        (PATCHES,),
    ),
    Mutation(
        "methods/rate.py",
        "made-up inputs are not as long as the real ones",
        "F.normalize(found, dim=1) * length",
        "found",
        (PATCHES,),
    ),
    Mutation(
        "methods/rate.py",
        "gradients on whitened inputs are clipped as others",
        "        return WHITENED_CLIP\n",
        "        return CLIP\n",
        (RULE,),
    ),
    Mutation(
        "methods/dpdt/whitening.py",
        "whitened inputs are so short that the bias gets half of the noise",
        "scale=NORM / (length or 1.0)",
        "scale=1.0 / (length or 1.0)",
        (WHITENING,),
    ),
    Mutation(
        "methods/dpdt/whitening.py",
        "whitening is fitted to other inputs than the public ones",
        "self.whitening = Whitening.of(public.to(outer.weight))",
        "self.whitening = Whitening.of(torch.randn_like(public).to(outer.weight))",
        (WHITENING,),
    ),
    Mutation(
        "methods/dpdt/whitening.py",
        "φ of an example depends on its place whatever is found out",
        "return 1 if found is None else ROWS",
        "return ROWS",
        (WHITENING,),
    ),
    Mutation(
        "methods/dpdt/whitening.py",
        "φ of an example depends on how many others there are",
        "filled = torch.cat([part, part[:1].expand(number - len(part), -1)])",
        "filled = part.clone()",
        (WHITENING,),
    ),
]

FEATURES = [
    Mutation(
        "training/run.py",
        "the dictionary is learnt from private images",
        "models.learn(model, config.model, public)",
        "models.learn(model, config.model, loaded.train[0])",
        (PATCHES,),
    ),
    Mutation(
        "models/patches.py",
        "an image's features depend on the others",
        "for image in x.float():",
        "for image in (x - x.mean(0)).float():",
        (PATCHES,),
    ),
    Mutation(
        "models/frozen.py",
        "what was learnt from other images is found",
        "key = key_of(model, settings, public)",
        "key = key_of(model, settings, public[:1])",
        (PATCHES,),
    ),
    Mutation(
        "models/patches.py",
        "what is learnt depends on the number of cores",
        "with one_core(), torch.no_grad():",
        "with torch.no_grad():",
        (PATCHES,),
    ),
    Mutation(
        "models/__init__.py",
        "a folder of public images is not looked at",
        "if config.dictionary_from is not None:",
        "if False:",
        (PATCHES,),
    ),
    Mutation(
        "releasing/description.py",
        "a release says where the public images were",
        "tokenizer=None, dictionary_from=None",
        "tokenizer=None",
        (PATCHES,),
    ),
    Mutation(
        "models/frozen.py",
        "an input's features depend on its place whatever is found out",
        "rows = IMAGES if frozen.together(take(part, torch.arange(1))[0], IMAGES) else 1",
        "rows = IMAGES",
        (FROZEN,),
    ),
    Mutation(
        "models/frozen.py",
        "an input's features depend on how many others there are",
        "yield chosen, torch.cat([x, x[:1].expand(rows - len(x), *x.shape[1:])])",
        "yield chosen, x",
        (FROZEN,),
    ),
    Mutation(
        "models/frozen.py",
        "places are tried on other cores than they are computed on",
        "        with one_core():\n            if len({",
        "        if True:\n            if len({",
        (FROZEN,),
    ),
    Mutation(
        "models/frozen.py",
        "features of an encoder that draws at random are taken",
        "for _ in range(TRIES)}) > 1:",
        "for _ in range(TRIES)}) > TRIES:",
        (ENCODERS,),
    ),
    Mutation(
        "models/pretrained.py",
        "weights that a folder lacks are drawn at random",
        "    if missing:",
        "    if False:",
        (ENCODERS,),
    ),
    Mutation(
        "releasing/description.py",
        "a release may name a model elsewhere",
        "name in PLACES or key in PLACES or",
        "",
        (ENCODERS,),
    ),
    Mutation(
        "models/frozen.py",
        "features are computed in the caller's precision",
        "with full_precision(), torch.no_grad():",
        "with torch.no_grad():",
        (FROZEN,),
    ),
    Mutation(
        "models/frozen.py",
        "features of other examples are found",
        '"examples": fingerprint(part),',
        '"examples": count(part),',
        (FROZEN,),
    ),
    Mutation(
        "models/frozen.py",
        "features of another frozen part are found",
        '"tensors": model_hash(nn.ModuleDict(children)),',
        "",
        (FROZEN,),
    ),
    Mutation(
        "models/frozen.py",
        "features of a part with other attributes are found",
        '"attributes": described(model),',
        '"attributes": {},',
        (FROZEN,),
    ),
    Mutation(
        "models/frozen.py",
        "features that other code has computed are found",
        '"code": code.hexdigest(),',
        "",
        (FROZEN,),
    ),
    Mutation(
        "data/cache.py",
        "damaged files are used",
        'if said != {"key": key, "content": _content(key, found)}:',
        'if said.get("key") != key:',
        (CACHE,),
    ),
    Mutation(
        "data/cache.py",
        "a file's content is not tied to its key",
        "digest = hashlib.sha256(key.encode())",
        "digest = hashlib.sha256()",
        (CACHE,),
    ),
    Mutation(
        "data/cache.py",
        "files that others may have written are used",
        "        _refuse_others(path)\n",
        "",
        (CACHE,),
    ),
    Mutation(
        "data/cache.py",
        "a folder that others may write to is used",
        "        _refuse_others(home)\n        _refuse_others(path)\n",
        "        _refuse_others(path)\n",
        (CACHE,),
    ),
    Mutation(
        "data/cache.py",
        "others may look into the folder",
        "home.mkdir(mode=0o700, parents=True, exist_ok=True)",
        "home.mkdir(parents=True, exist_ok=True)",
        (CACHE,),
    ),
    Mutation(
        "training/run.py",
        "examples that others need are overwritten",
        "overwrite=examples is None",
        "overwrite=True",
        (WHITENING,),
    ),
    Mutation(
        "training/ready.py",
        "a state belongs to data that are no more",
        "identity = partial(dict, identity())  # of",
        "identity = partial(identity)  # of",
        (WHITENING,),
    ),
    Mutation(
        "accounting/composition.py",
        "where all take part, replacing an example counts once",
        "math.sqrt(total) * (2.0 if replaced and header.per_example else 1.0)",
        "math.sqrt(total)",
        (POISSON,),
    ),
    Mutation(
        "algorithm/state.py",
        "what a list holds is compared as it is printed",
        "if kind in EMPTY and not value:",
        "if kind in EMPTY:",
        (KEPT,),
    ),
]

STEPS = [
    Mutation(
        "training/step.py",
        "steps are not recorded",
        "        loader.announce = self._turns.recorded(self._record)\n",
        "",
        (ISOLATION,),
    ),
    Mutation(
        "training/step.py",
        "any batch is taken",
        "own = self.loader.used(batch, self.engine.steps)",
        "own = batch",
        (f"{TRAIN}::test_batches_must_come_from_the_loader_once_and_in_order",),
    ),
    Mutation(
        "training/step.py",
        "a batch that was handed out before the end is taken after it",
        "        self.writer.refuse_ended()\n",
        "",
        (STEP,),
    ),
    Mutation(
        "training/step.py",
        "weights may be changed between steps",
        ("            self._refuse_other_weights()\n            self.noise.begin"),
        "            self.noise.begin",
        (HOLES_CONVEX,),
    ),
    Mutation(
        "training/step.py",
        "weights may be changed before the end",
        ("            self._refuse_other_weights()\n            self.loader.check()"),
        "            self.loader.check()",
        (ISOLATION,),
    ),
    Mutation(
        "training/step.py",
        "privacy() does not check the model",
        (
            "            with suppress(Tainted):  # which the ledger says\n"
            "                self.check()\n"
        ),
        "            pass\n",
        (ISOLATION,),
    ),
    Mutation(
        "training/step.py",
        "what breaks a guarantee does not void the ledger",
        "            self.writer.void(str(error))\n",
        "",
        (CARRIES,),
    ),
    Mutation(
        "training/step.py",
        "what privacy() showed on the way is not recorded",
        ("        if self._shown:\n            self.writer.export("),
        ("        if False:\n            self.writer.export("),
        (LAST,),
    ),
    Mutation(
        "training/step.py",
        "privacy() shows nothing",
        "self._shown = not self.writer.ledger.closed",
        "self._shown = False",
        (LAST,),
    ),
    Mutation(
        "training/step.py",
        "exports of the caller are not recorded",
        "        self.writer.export(what)\n\n    def check",
        "        pass\n\n    def check",
        (LAST, STEP),
    ),
    Mutation(
        "training/step.py",
        "nothing is checked at the end",
        "            self.check()\n            self.agree()",
        "            self.agree()",
        (KEPT,),
    ),
    Mutation(
        "training/step.py",
        "nothing is checked at a pause",
        "        self.check()\n        self.agree()\n",
        "        self.agree()\n",
        (KEPT,),
    ),
    Mutation(
        "training/step.py",
        "the model of an interrupted run is not recorded as an export",
        '            self.writer.export(f"the model when the run was paused after '
        '{self.engine.steps} steps")\n',
        "",
        (LAST,),
    ),
    Mutation(
        "training/step.py",
        "steps may follow a pause",
        "        self.writer.pause()\n",
        "",
        (HOLES_LEDGER,),
    ),
    Mutation(
        "training/step.py",
        "steps may follow the end",
        "            self.writer.close(hash_of_model(self.whole))\n",
        "",
        (HOLES_LEDGER,),
    ),
    Mutation(
        "training/step.py",
        "the weights that a finished run leaves are not remembered",
        ("            self._remember()\n            self.writer.close("),
        "            self.writer.close(",
        (ISOLATION,),
    ),
    Mutation(
        "training/step.py",
        "the weights that a paused run leaves are not remembered",
        ("        self._remember()\n        self.writer.pause()"),
        "        self.writer.pause()",
        (STEP,),
    ),
    Mutation(
        "training/step.py",
        "a loaded state repeats its noise",
        '            "voids": list(ledger.voids),\n        }\n\n    def load_state_dict(',
        '            "voids": list(ledger.voids),\n            "secrets": self.secrets(),\n'
        "        }\n\n    def load_state_dict(self, state: dict[str, Any]) -> None:\n"
        "        self._load_state_dict(state)\n"
        '        self.noise.resume(state["secrets"]["noise"])\n\n    def _load_state_dict(',
        (REPLAY,),
    ),
    Mutation(
        "training/step.py",
        "a state holds the noise",
        '            "run": self.run,\n',
        '            "run": self.run,\n            "secrets": self.secrets(),\n',
        (REPLAY,),
    ),
    Mutation(
        "training/step.py",
        "what a loaded state has spent is forgotten",
        "                self.writer.adopt(runs)\n",
        "",
        (STATE,),
    ),
    Mutation(
        "training/step.py",
        "exports of a loaded state are forgotten",
        'for what in state["exports"]:',
        "for what in ():",
        (STEP,),
    ),
    Mutation(
        "training/step.py",
        "voids of a loaded state are forgotten",
        'for why in state["voids"]:',
        "for why in ():",
        (STEP,),
    ),
    Mutation(
        "training/step.py",
        "a state of another run is loaded",
        'elif state["run"] != self.run or not begins_with(ledger.runs, runs):',
        "elif False:",
        (REPLAY,),
    ),
    Mutation(
        "training/step.py",
        "PATE goes back and answers again",
        "if not self.plan.training.method.goes_back:",
        "if False:",
        (ISOLATION,),
    ),
    Mutation(
        "training/step.py",
        "a state of the same run that the ledger does not begin with is loaded",
        'elif state["run"] != self.run or not begins_with(ledger.runs, runs):',
        'elif state["run"] != self.run:',
        (STEP,),
    ),
    Mutation(
        "training/step.py",
        "a state's identity is not looked at",
        "if mine[name] != theirs.get(name):",
        "if False:",
        (REPLAY,),
    ),
    Mutation(
        "training/step.py",
        "resume: the ledger need not begin with the checkpoint",
        "            if not begins_with(ledger.runs, runs) or",
        "            if",
        (RESUMED, STATE),
    ),
    Mutation(
        "training/recorded.py",
        "resume: steps may have been taken twice",
        "if not (_consecutive(since, position) and _as_planned(since, plan)):",
        "if False:",
        (STATE,),
    ),
    Mutation(
        "training/recorded.py",
        "resume: settings are not compared with the ledger",
        "    if not _as_planned(runs, plan):",
        "    if False:",
        (STEP,),
    ),
    Mutation(
        "training/step.py",
        "resume: the noise is repeated, the coins are not",
        '        self.loader.draws.resume(kept["coins"])\n',
        "",
        (STATE,),
    ),
    Mutation(
        "training/step.py",
        "resume: later steps are not recorded",
        "if step >= self._recorded:",
        "if step >= self._recorded and not self._recorded:",
        (STATE, METHODS_ALL),
    ),
    Mutation(
        "training/step.py",
        "steps that are taken again after a resume are not recorded",
        "            self._recorded = 0\n            self._load(state)",
        "            self._load(state)",
        (STEP,),
    ),
    Mutation(
        "training/earlier.py",
        "a model that was trained on the same data is accepted",
        "if data in seen:",
        "if False:",
        (LEFTOVERS,),
    ),
    Mutation(
        "training/earlier.py",
        "copies of trained weights are not known again",
        "*(_LEFT.get(h, ()) for h in left)",
        "*(() for h in left)",
        (ISOLATION, EARLIER),
    ),
    Mutation(
        "training/earlier.py",
        "a frozen layer that was trained before is passed over",
        "return [*model.parameters(), *model.buffers()]",
        "return [p for p in model.parameters() if p.requires_grad]",
        (EARLIER,),
    ),
    Mutation(
        "training/earlier.py",
        "statistics of the data in a buffer are passed over",
        "return [*model.parameters(), *model.buffers()]",
        "return [*model.parameters()]",
        (EARLIER,),
    ),
    Mutation(
        "training/earlier.py",
        "what a run has frozen counts as trained by it",
        "        if parameter.requires_grad:\n            _TRAINED",
        "        if True:\n            _TRAINED",
        (EARLIER,),
    ),
    Mutation(
        "training/kept.py",
        "a run that goes on forgets that its frozen layer has seen the data",
        "for why in filter(None, world.gather(_why_not(step))):",
        "for why in ():",
        (EARLIER,),
    ),
    Mutation(
        "training/kept.py",
        "a learning rate is measured on weights that have seen the data",
        "replaced=not measured",
        "replaced=True",
        (EARLIER,),
    ),
    Mutation(
        "training/step.py",
        "steps that are taken again have a rate that is measured on the way",
        "if (runs := self.writer.ledger.runs) and",
        "if (runs := runs_of(state)) and",
        (EARLIER,),
    ),
    Mutation(
        "training/ready.py",
        "a state's frozen weights are not compared",
        '"frozen weights or buffers": frozen,',
        '"frozen weights or buffers": "",',
        (EARLIER,),
    ),
    Mutation(
        "training/ready.py",
        "a state's buffers are not compared",
        "model.named_buffers() if private else ()",
        "()",
        (EARLIER,),
    ),
    Mutation(
        "training/recorder.py",
        "a run with other frozen weights writes to the ledger before it is refused",
        '        self.step.refuse_another(given.get("step", {}))  # before anything is written\n',
        "",
        (EARLIER,),
    ),
    Mutation(
        "methods/optimizers.py",
        "a state overwrites what is frozen",
        "for name, p in model.named_parameters() if p.requires_grad]",
        "for name, p in model.named_parameters()]",
        (EARLIER,),
    ),
    Mutation(
        "training/fitted.py",
        "weights that were changed are saved beside the ledger",
        "if hash_of_model(self.model) != self._ledger.model:",
        "if False:",
        (IN_PYTHON,),
    ),
    Mutation(
        "training/earlier.py",
        "the parameters of a trained model are not known again",
        "*(_TRAINED.get(t, ()) for t in tensors)",
        "*(() for t in tensors)",
        (STEP,),
    ),
    Mutation(
        "training/loop.py",
        "what a model was trained on is not remembered",
        "    earlier.remember(model, seen)\n",
        "",
        (STEP,),
    ),
    Mutation(
        "training/loop.py",
        "a model that was trained before does not void the run",
        "        step.writer.void(why)\n",
        "        pass\n",
        (LEFTOVERS,),
    ),
    Mutation(
        "training/streams.py",
        "noise comes from the public training seed",
        "    seeds = (None, None) if seed is None else (2 * seed, 2 * seed + 1)\n",
        "    seeds = (plan.training.train.seed, None)\n",
        (SEEDS,),
    ),
    Mutation(
        "training/streams.py",
        "coins come from the public training seed",
        "    seeds = (None, None) if seed is None else (2 * seed, 2 * seed + 1)\n",
        "    seeds = (None, plan.training.train.seed)\n",
        (SEEDS,),
    ),
    Mutation(
        "training/watching.py",
        "a callback that sees private numbers stops a run",
        "stop |= asks and may",
        "stop |= asks",
        (CALLBACKS,),
    ),
    Mutation(
        "training/watching.py",
        "what a callback has seen, another stops the run for",
        "may = not self._shows or (type(callback) is EarlyStopping and not private)",
        "may = not private",
        (CALLBACKS,),
    ),
    Mutation(
        "training/watching.py",
        "what on_step has seen, a callback stops the run for",
        "self._shows = on_step is not None or any(self._seeing)",
        "self._shows = any(self._seeing)",
        (CALLBACKS,),
    ),
    Mutation(
        "training/watching.py",
        "what a callback is shown is asked anew after each epoch",
        "in zip(self.callbacks, self._seeing, strict=True):",
        "in [(c, c.private) for c in self.callbacks]:",
        (CALLBACKS,),
    ),
    Mutation(
        "training/watching.py",
        "callbacks may ask for the loss on training data",
        "            if same(examples):\n",
        "            if False:\n",
        (CALLBACKS,),
    ),
    Mutation(
        "training/watching.py",
        "a run stops early by some of its training data",
        "return step.held.trained(examples) or sample(",
        "return sample(",
        (CALLBACKS,),
    ),
    Mutation(
        "training/offered.py",
        "public inputs may be a slice of the training data",
        "if public is not None and overlaps(data, public):",
        "if False:",
        (CALLBACKS,),
    ),
    Mutation(
        "training/offered.py",
        "public inputs may be a copy of the training data",
        "if inputs is not None and same_inputs(mine, inputs):",
        "if False:",
        (CALLBACKS,),
    ),
    Mutation(
        "data/overlap.py",
        "a subset of a subset is taken for one of the whole",
        "numbers if among is None else [among[i] for i in numbers]",
        "numbers",
        (OVERLAP,),
    ),
    Mutation(
        "training/own.py",
        "a model that was changed after its run is its result",
        "        if hash_of_model(self.whole) != self.writer.ledger.model:\n",
        "        if False:\n",
        (OWN,),
    ),
    Mutation(
        "training/step.py",
        "training data may change on the way",
        "            self.loader.check()\n",
        "",
        (OWN,),
    ),
    Mutation(
        "training/loader.py",
        "training data may change past torch's count",
        "return sample(self.data), [",
        'return "", [',
        (OWN,),
    ),
    Mutation(
        "training/loader.py",
        "one example may change on the way",
        "[t._version for t in leaves(self.data)]",
        "[]",
        (OWN,),
    ),
    Mutation(
        "methods/dpsgd/engine.py",
        "a loss may choose the learning rate between steps",
        "        self._refuse_other_optimizer()\n        with full_precision():\n",
        "        with full_precision():\n",
        (OPTIMIZERS,),
    ),
    Mutation(
        "methods/dpsgd/engine.py",
        "an optimizer that was changed after the last step goes unnoticed",
        "        self.executor.check()\n        self._refuse_other_optimizer()\n",
        "        self.executor.check()\n",
        (OPTIMIZERS,),
    ),
    Mutation(
        "methods/optimizers.py",
        "momentum may be changed between steps",
        "[held, plain(optimizer.param_groups), state]",
        "[held, plain(optimizer.param_groups)]",
        (OPTIMIZERS,),
    ),
    Mutation(
        "training/watching.py",
        "every callback is shown private numbers",
        "told = dict(everything) if private else Record(public)",
        "told = dict(everything)",
        (CALLBACKS,),
    ),
    Mutation(
        "training/watching.py",
        "a callback that sees private numbers ends a run by an exception",
        "            self.step.writer.void(ENDED_BY_PRIVATE.format(error=type(error).__name__))\n",
        "",
        (CALLBACKS,),
    ),
    Mutation(
        "training/watching.py",
        "a callback that sees private numbers ends a run by a signal",
        "            self._interrupt.asked = False\n",
        "",
        (CALLBACKS,),
    ),
    Mutation(
        "training/watching.py",
        "on_step ends a run by a private number",
        "            with self._shown_private():\n",
        "            with nullcontext():\n",
        (CALLBACKS,),
    ),
    Mutation(
        "training/recorded.py",
        "a run that ends early costs only the steps that it took",
        "        writer.adopt(between(plan.ledger().runs, place, plan.steps))\n",
        "",
        (CALLBACKS, OWN),
    ),
    Mutation(
        "training/recorded.py",
        "a run that ends early is hidden by steps that it did not take",
        '        writer.export(f"the model after',
        '        str(f"the model after',
        (CALLBACKS,),
    ),
    Mutation(
        "training/callbacks.py",
        "a run stops early by its own training data",
        "if facts.same(self.public):",
        "if False:",
        (CALLBACKS,),
    ),
    Mutation(
        "training/own.py",
        "a loop of one's own does not end its run",
        "            self.finish()\n        return result",
        "            pass\n        return result",
        (OWN,),
    ),
    Mutation(
        "training/own.py",
        "the loader runs on into the next epoch",
        "loader.until((loader.position // loader.batches + 1) * loader.batches)",
        "loader.until(loader.steps)",
        (OWN,),
    ),
    Mutation(
        "training/own.py",
        "nothing is trained after the last epoch, in silence",
        "if loader.position >= loader.steps:",
        "if False:",
        (OWN,),
    ),
    Mutation(
        "training/kept.py",
        "a run in Python repeats its noise",
        "interrupt=interrupt, repeats=False",
        "interrupt=interrupt, repeats=True",
        (IN_PYTHON,),
    ),
    Mutation(
        "methods/optimizers.py",
        "an optimizer may compute the loss again",
        '    if _needed(made):\n        raise InputError(\n            f"optimizer:',
        '    if False:\n        raise InputError(\n            f"optimizer:',
        (OPTIMIZERS,),
    ),
    Mutation(
        "methods/optimizers.py",
        "an optimizer may hold other tensors",
        "if sorted(held) != sorted(map(id, parameters)):",
        "if False:",
        (OPTIMIZERS,),
    ),
    Mutation(
        "methods/optimizers.py",
        "an optimizer may remember gradients without noise",
        "    if not _fresh(made):\n",
        "    if False:\n",
        (OPTIMIZERS,),
    ),
    Mutation(
        "methods/optimizers.py",
        "Adagrad may remember gradients without noise",
        "    if not isinstance(made, torch.optim.Adagrad):\n",
        "    if isinstance(made, torch.optim.Adagrad):\n        return True\n    if True:\n",
        (OPTIMIZERS,),
    ),
    Mutation(
        "methods/optimizers.py",
        "a scheduler may have been used before",
        'if getattr(made, "last_epoch", 0) > 0:',
        "if False:",
        (OPTIMIZERS,),
    ),
    Mutation(
        "methods/optimizers.py",
        "a scheduler may follow a number",
        '    if _needed(made):\n        raise InputError(\n            f"scheduler:',
        '    if False:\n        raise InputError(\n            f"scheduler:',
        (OPTIMIZERS,),
    ),
    Mutation(
        "methods/optimizers.py",
        "a run goes on with the state of another optimizer",
        'if state["kind"] != (mine := _kind(optimizer, scheduler)):',
        "if False:",
        (OPTIMIZERS,),
    ),
    Mutation(
        "training/behind.py",
        "noise is correlated for an optimizer that nobody knows",
        "if method.noise_bands == AUTO:",
        "if False:",
        (OPTIMIZERS,),
    ),
    Mutation(
        "training/watching.py",
        "what callbacks saw is not recorded",
        '            step.export("what callbacks saw on the way")\n',
        "            pass\n",
        (LAST,),
    ),
    Mutation(
        "training/loop.py",
        "accuracies after each epoch are not recorded",
        '                    step.export(f"the {step.held.name} after each epoch")\n',
        "                    pass\n",
        (LAST, STEP),
    ),
    Mutation(
        "training/loop.py",
        "accuracies are shown though only the last iterate leaves",
        "shown = step.held.test is not None and (last or not hidden)",
        "shown = step.held.test is not None",
        (LAST,),
    ),
    Mutation(
        "training/loop.py",
        "an interrupted run is not paused",
        "        step.pause()\n        raise",
        "        raise",
        (LAST, STEP),
    ),
    Mutation(
        "methods/problem.py",
        "labels of any kind have bounded gradients",
        "if usual and _has_class_numbers(data) else None",
        "if usual else None",
        (HOLES_CONVEX,),
    ),
    Mutation(
        "methods/problem.py",
        "a label decides whether the ledger has bounds",
        "y.dim() == 1 and y.dtype == torch.int64\n",
        "y.dim() == 1 and y.dtype == torch.int64 and bool((y >= 0).all())\n",
        (HOLES_CONVEX,),
    ),
    Mutation(
        "models/loss.py",
        "what is ignored gives its weight to others",
        "_cross_entropies(outputs, y).sum() / len(y)",
        "_cross_entropies(outputs, y).sum() / (y != IGNORED).sum().clamp_min(1)",
        (HOLES_CONVEX, "tests/models/test_loss.py"),
    ),
    Mutation(
        "methods/problem.py",
        "losses of one's own have bounded gradients",
        "if usual and _has_class_numbers(data) else None",
        "if _has_class_numbers(data) else None",
        (CONVEX,),
    ),
    Mutation(
        "training/ready.py",
        "whitening is fitted to private data",
        "whitened = Whitened(model, public)",
        "whitened = Whitened(model, data[0])",
        (WHITENING,),
    ),
    Mutation(
        "training/ready.py",
        "the learning rate is measured on private data",
        "typical(inputs, data, learner,",
        "typical(data[0], data, learner,",
        (RULE,),
    ),
    Mutation(
        "training/loop.py",
        "an example's number is not its key",
        "alone=poisson and plan.header.per_example,",
        "alone=False,",
        (DROPOUT,),
    ),
    Mutation(
        "training/loop.py",
        "Poisson batches count as fixed",
        'fixed=not poisson and plan.header.unit != "user",',
        'fixed=plan.header.unit != "user",',
        (DROPOUT, SAMPLED),
    ),
    Mutation(
        "training/loop.py",
        "what users hold counts as fixed",
        'fixed=not poisson and plan.header.unit != "user",',
        "fixed=not poisson,",
        (SAMPLED,),
    ),
    Mutation(
        "training/ready.py",
        "a state's settings are not compared",
        '"settings": _digest([asdict(anywhere(plan.training)), asdict(plan.header)]),',
        '"settings": "",',
        (REPLAY,),
    ),
    Mutation(
        "training/ready.py",
        "a state's model is not compared",
        '"model": _digest(shapes),',
        '"model": "",',
        (STEP,),
    ),
    Mutation(
        "training/ready.py",
        "a state's users are not compared",
        '"users": _digest(owner),',
        '"users": "",',
        (STEP,),
    ),
    Mutation(
        "training/ready.py",
        "a state's data are not compared",
        '"training data or public inputs": _digest(hashes),',
        '"training data or public inputs": "",',
        (REPLAY,),
    ),
    Mutation(
        "data/access.py",
        "a fingerprint looks at the first examples only",
        "chunks = torch.split(torch.arange(count(data)), READ)",
        "chunks = torch.split(torch.arange(count(data)), READ)[:1]",
        (STEP,),
    ),
    Mutation(
        "data/access.py",
        "a fingerprint does not look at what examples hold",
        ("digest.update(as_bytes(t).numpy().data)\n    return"),
        ("digest.update(b'')\n    return"),
        (f"{RESUME}::test_a_changed_example_changes_the_fingerprint",),
    ),
    Mutation(
        "training/loader.py",
        "foreign batches are taken",
        "if given is None or own is None or batch is not given:",
        "if given is None or own is None:",
        (STEP,),
    ),
    Mutation(
        "training/loader.py",
        "changed batches are taken",
        "if len(mine) != len(theirs) or not all(map(same_bits, mine, theirs)):",
        "if False:",
        (RESUMED,),
    ),
    Mutation(
        "training/loader.py",
        "a batch is paid for after it was handed out",
        (
            "                self.announce(step)\n"
            "                self.position += 1\n"
            "                with self.world.telling():\n"
            "                    own = self._batch(step)\n"
            "                given = Handed.of(own)\n"
            "                self._handed[step] = (given, own)\n"
            "            yield given\n"
        ),
        (
            "                self.position += 1\n"
            "                with self.world.telling():\n"
            "                    own = self._batch(step)\n"
            "                given = Handed.of(own)\n"
            "                self._handed[step] = (given, own)\n"
            "            yield given\n"
            "            self.announce(step)\n"
        ),
        (ISOLATION,),
    ),
    Mutation(
        "training/loader.py",
        "the batch that is handed out is the one that is computed on",
        "given = Handed.of(own)",
        "given = own",
        (RESUMED,),
    ),
    Mutation(
        "training/loader.py",
        "a step computes on what the caller holds",
        "        return own\n",
        "        return batch\n",
        (STEP,),
    ),
    Mutation(
        "training/loader.py",
        "a batch whose step failed is taken again",
        "        del self._handed[step]\n",
        "",
        (STEP,),
    ),
    Mutation(
        "training/loader.py",
        "empty Poisson batches are drawn again",
        "        part = self.draws.use(step)\n",
        (
            "        part = self.draws.use(step)\n"
            "        while not self.fixed and not len(part.indices):\n"
            "            part = self.draws.use(step)\n"
        ),
        (SAMPLED,),
    ),
    Mutation(
        "data/access.py",
        "what a Dataset draws depends on who else is read",
        "                seeded(seed, step, key)\n",
        "                pass\n",
        (ISOLATION,),
    ),
    Mutation(
        "data/access.py",
        "a Dataset sees several examples at once",
        ("                rows.append(data[i])\n    batch = default_collate(rows)"),
        (
            "                pass\n"
            "        rows = data.__getitems__(indices.tolist())\n"
            "    batch = default_collate(rows)"
        ),
        (ISOLATION,),
    ),
    Mutation(
        "data/access.py",
        "data that cannot be cut into examples are accepted",
        ("    refuse_others(data)\n    lengths"),
        "    lengths",
        (ISOLATION,),
    ),
    Mutation(
        "data/access.py",
        "what a Dataset gives that cannot be cut into examples is accepted",
        "    refuse_others(batch)\n",
        "",
        (ISOLATION,),
    ),
]

PLANS = [
    Mutation(
        "training/run.py",
        "a run of something else than was accounted is made",
        "if step.plan.problem != problem_of(config):",
        "if False:",
        (TOLD,),
    ),
    Mutation(
        "methods/plan.py",
        "a step has the setting of the one before",
        "bisect_right(self._ends, step)",
        "max(0, bisect_right(self._ends, step - 1))",
        (LATTICE, METHODS_ALL),
    ),
    Mutation(
        "methods/problem.py",
        "bounds are taken to hold for any loss",
        "bounds=bounds_of(model) if usual and _has_class_numbers(data) else None,",
        "bounds=bounds_of(model) if _has_class_numbers(data) else None,",
        (HOLES_CONVEX, CONVEX),
    ),
    Mutation(
        "methods/problem.py",
        "bounds are taken to hold for any labels",
        "bounds=bounds_of(model) if usual and _has_class_numbers(data) else None,",
        "bounds=bounds_of(model) if usual else None,",
        (HOLES_CONVEX,),
    ),
    Mutation(
        "methods/problem.py",
        "any model is taken to be linear",
        "linear=usual and layer is not None,",
        "linear=usual,",
        (TOLD,),
    ),
    Mutation(
        "methods/canaries.py",
        "a pull exceeds the bound that a guarantee rests on",
        "strength = PULL * clip if bounds is None else WITHIN * bounds.gradient",
        "strength = PULL * clip",
        (CANARIES,),
    ),
    Mutation(
        "methods/canaries.py",
        "canaries are in or out by the public seed",
        "Randomness().coins(wanted.number, 0.5)",
        "Randomness(wanted.seed).coins(wanted.number, 0.5)",
        (CANARIES,),
    ),
    Mutation(
        "config/planning.py",
        "gradient canaries are told for methods that have no place for them",
        "if pulls and not config.method.takes_pulls:",
        "if False:",
        (CANARIES,),
    ),
    Mutation(
        "config/loading.py",
        "a file has two sets of values for its own method",
        "if own in peers:",
        "if False:",
        ("tests/methods/test_plain.py",),
    ),
    Mutation(
        "methods/optimizers.py",
        "a run writes to the state that it went on from",
        'optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))',
        'optimizer.load_state_dict(state["optimizer"])',
        (METHODS_ALL,),
    ),
    Mutation(
        "methods/pate/engine.py",
        "a gradient stays on the student",
        "                chosen.zero_grad()\n",
        "",
        (METHODS_ALL,),
    ),
    Mutation(
        "methods/pate/engine.py",
        "teachers grow from another start after a resume",
        '        self.start.load_state_dict(state["start"])\n',
        "",
        (PATE,),
    ),
    Mutation(
        "methods/dpdt/__init__.py",
        "a seeded run is called private (dpdt)",
        "            private=training.privacy.noise_seed is None,",
        "            private=True,",
        (SEEDS,),
    ),
    Mutation(
        "methods/sampled.py",
        "a seeded run is called private (dpsgd, gep)",
        "        private=training.privacy.noise_seed is None,",
        "        private=True,",
        (SEEDS,),
    ),
    Mutation(
        "methods/pate/__init__.py",
        "a seeded run is called private (pate)",
        "            private=training.privacy.noise_seed is None,",
        "            private=True,",
        (SEEDS,),
    ),
    Mutation(
        "methods/dpdt/__init__.py",
        "release = all is recorded as last",
        "release=training.privacy.release,",
        'release="last",',
        (LAST,),
    ),
    Mutation(
        "methods/plan.py",
        "a δ that promises nothing is planned with",
        "    check_delta(privacy.delta, problem.examples, what,",
        "    str((privacy.delta, problem.examples, what)), dict(",
        (CLI, METHODS),
    ),
    Mutation(
        "methods/plan.py",
        "Poisson sampling draws more than is accounted",
        "rate=header.rate,",
        "rate=min(1.0, 1.5 * header.rate),",
        (SAMPLED,),
    ),
    Mutation(
        "methods/plan.py",
        "Poisson sums have fewer terms than examples",
        'terms = most_examples(header) if header.sampling == "poisson" else header.auxiliaries',
        "terms = header.auxiliaries",
        (LATTICE,),
    ),
    Mutation(
        "methods/plan.py",
        "what is told beforehand leaves out rounding",
        "return tuple((_on_lattice(setting, self.header), number) for setting, number in found)",
        "return found",
        (LATTICE,),
    ),
    Mutation(
        "methods/pate/__init__.py",
        "PATE's votes have sensitivity 1, not √2",
        "clip=(0.5, math.sqrt(0.5))",
        "clip=(0.5, 0.5)",
        (PATE,),
    ),
    Mutation(
        "methods/pate/__init__.py",
        "PATE's threshold has sensitivity ½",
        "query = equal_step(clip=(0.5, 0.0)",
        "query = equal_step(clip=(0.25, 0.0)",
        (PATE,),
    ),
    Mutation(
        "methods/pate/__init__.py",
        "PATE's queries without an answer cost nothing",
        "(query, queries - answers),",
        "(replace(query, clip=(0.0, 0.0)), queries - answers),",
        (PATE,),
    ),
    Mutation(
        "methods/dpdt/__init__.py",
        "a list of penalties is recorded as one",
        "one_penalty=recipe.shared_penalty,",
        "one_penalty=True,",
        (HOLES_CONVEX,),
    ),
    Mutation(
        "methods/dpdt/__init__.py",
        "averaging is not recorded",
        "        averaging=recipe.averaging,\n",
        "",
        (AVERAGE,),
    ),
    Mutation(
        "methods/dpdt/__init__.py",
        "the preconditioner is not recorded",
        "            preconditioner=self.preconditioner,\n",
        "",
        (METHODS,),
    ),
    Mutation(
        "methods/dpdt/__init__.py",
        "auxiliaries' weight decay is not recorded",
        "auxiliary_weight_decay=self.auxiliary_weight_decay,\n            gradient_bound",
        "gradient_bound",
        (METHODS,),
    ),
    Mutation(
        "methods/dpdt/__init__.py",
        "memory is recorded as none",
        "            memory=self.memory,\n            sampling",
        '            memory="none",\n            sampling',
        (COMPOSITION,),
    ),
    Mutation(
        "methods/dpdt/__init__.py",
        "the unit is recorded as an example",
        "            unit=training.privacy.unit,",
        '            unit="example",',
        (f"{TRAIN}::test_users_as_shards_give_a_user_level_guarantee",),
    ),
    Mutation(
        "methods/plan.py",
        "examples may be absent where they are replaced",
        'if absent is not None and header.relation == "replace-one":',
        "if False:",
        (CANARIES,),
    ),
    Mutation(
        "methods/dpdt/checks.py",
        "Poisson sampling with auxiliaries that remember",
        '            poisson and method.memory == "auxiliary",',
        "            False,",
        (CONFIG,),
    ),
    Mutation(
        "methods/dpdt/checks.py",
        "Poisson sampling for users",
        '            poisson and privacy.unit != "example",',
        "            False,",
        (CONFIG,),
    ),
    Mutation(
        "methods/dpdt/checks.py",
        "a fixed partition under zero-out",
        '            not poisson and privacy.relation not in (None, "replace-one"),',
        "            False,",
        (CONFIG,),
    ),
    Mutation(
        "methods/dpdt/checks.py",
        "replace-one under Poisson sampling with shared auxiliaries",
        '            poisson and privacy.relation == "replace-one" and not method.per_example,',
        "            False,",
        (CONFIG,),
    ),
    Mutation(
        "methods/dpdt/checks.py",
        "users whose examples are contributions of their own",
        'privacy.unit == "user" and method.per_example,',
        "False,",
        (CONFIG, SAMPLED),
    ),
]

ACCOUNTING = [
    Mutation(
        "seal.py",
        "seals have no salt",
        "salt = secrets.token_bytes(PART)",
        "salt = bytes(PART)",
        (SEAL,),
    ),
    Mutation(
        "seal.py",
        "the identity stands in a seal as it is",
        "    body = _xor(both, _pad(key, salt))\n",
        "    body = both\n",
        (SEAL,),
    ),
    Mutation(
        "seal.py",
        "a seal of another key opens",
        'if not hmac.compare_digest(check, _mac(key, b"check", salt + body)):',
        "if False:",
        (SEAL,),
    ),
    Mutation(
        "accounting/cost.py",
        "runs add up in μ, not μ²: the largest counts",
        "mu=math.hypot(*(cost.mu for cost in found)),",
        "mu=max((cost.mu for cost in found), default=0.0),",
        (SEVERAL,),
    ),
    Mutation(
        "accounting/cost.py",
        "steps of equal runs are counted once",
        "number[rate, mu] += steps",
        "number[rate, mu] = steps",
        (SEVERAL,),
    ),
    Mutation(
        "accounting/cost.py",
        "what is Gaussian beside sampled steps is left out",
        "    if gaussian > 0:\n",
        "    if False:\n",
        (SEVERAL,),
    ),
    Mutation(
        "accounting/several.py",
        "runs that replace are accounted with those that add as adding",
        'relation = max(relations, key=RELATIONS.index, default="zero-out")',
        'relation = "zero-out"',
        (SEVERAL,),
    ),
    Mutation(
        "accounting/several.py",
        "the last iterate's bound counts for a run that may go on",
        "    if ledger.closed:\n",
        "    if True:\n",
        (SEVERAL,),
    ),
    Mutation(
        "accounting/several.py",
        "what guarantees nothing costs nothing",
        "return math.inf if any(self.reasons) else self.bounded",
        "return self.bounded",
        (SEVERAL,),
    ),
    Mutation(
        "accounting/composition.py",
        "shared auxiliaries are replaced as if they were sampled",
        "if header.rate >= 1.0 or (replaced and not header.per_example):",
        "if header.rate >= 1.0:",
        (SEVERAL,),
    ),
    Mutation(
        "releasing/budget.py",
        "runs of unknown data count to none",
        "runs = (*mine, *unopened)",
        "runs = tuple(mine)",
        (BUDGET,),
    ),
    Mutation(
        "releasing/budget.py",
        "a limit does not count runs of unknown data",
        "found = [*mine, *unopened]",
        "found = [*mine]",
        (BUDGET,),
    ),
    Mutation(
        "releasing/found.py",
        "a ledger with the seal of a longer one counts for nothing",
        "(mine.setting, mine.start) == (last.setting, last.start) and mine.steps >= last.steps",
        "mine.steps >= last.steps",
        (BUDGET,),
    ),
    Mutation(
        "releasing/found.py",
        "a folder that cannot be looked into is passed over",
        "os.walk(folder, onerror=refuse)",
        "os.walk(folder)",
        (BUDGET,),
    ),
    Mutation(
        "training/run.py",
        "a run is begun although it was refused",
        "        approve(planned)\n        failing",
        "        failing",
        (BUDGET,),
    ),
    Mutation(
        "training/run.py",
        "a run looks for others before they can see it",
        "        announce(folder, planned)\n        step.writer",
        "        step.writer",
        (BUDGET,),
    ),
    Mutation(
        "releasing/budget.py",
        "a limit counts runs that may go on as if they would not",
        "ends = [end for one in found for end in one.at_the_end()]",
        "ends = found",
        (BUDGET,),
    ),
    Mutation(
        "runs/plan.py",
        "a plan that was cut says what a run will have paid",
        "if not plan.closed or (plan",
        "if (plan",
        (BUDGET,),
    ),
    Mutation(
        "runs/plan.py",
        "another run's plan says what a run will have paid",
        "(plan.header, plan.data) != (now.header, now.data)",
        "False",
        (BUDGET,),
    ),
    Mutation(
        "runs/plan.py",
        "a plan need not have what was done",
        " and first[-1].steps >= last.steps",
        "",
        (BUDGET,),
    ),
    Mutation(
        "runs/plan.py",
        "a run that is under way was never voided",
        "exports=now.exports, voids=now.voids)",
        "exports=now.exports)",
        (BUDGET,),
    ),
    Mutation(
        "runs/plan.py",
        "a run that may not end counts as if it had",
        "replace(plan, closed=False, exports",
        "replace(plan, exports",
        (BUDGET,),
    ),
    Mutation(
        "training/recorder.py",
        "a copy that will go on with fresh noise is a copy",
        "return whole if exact else replace(whole, forks=[*whole.forks, nonce()])",
        "return whole",
        (BUDGET,),
    ),
    Mutation(
        "training/recorder.py",
        "an older checkpoint's noise is drawn again after a fork",
        'if state["step"]["forks"] != ledger.forks:',
        "if False:",
        (RESUMED,),
    ),
    Mutation(
        "training/step.py",
        "resume: the ledger need not have the forks of the checkpoint",
        " or ledger.forks[: len(forks)] != forks:",
        ":",
        (RESUMED,),
    ),
    Mutation(
        "training/recorder.py",
        "a run goes on though its ledger is of other data",
        "if seal.differ(seal.own_key(), mine, writer.ledger.data):",
        "if False:",
        (BUDGET,),
    ),
    Mutation(
        "accounting/composition.py",
        "the sensitivity is C/K, not 2C/K",
        "reach = (1.0 if alone else 2.0) / header.auxiliaries",
        "reach = 1.0 / header.auxiliaries",
        (COMPOSITION,),
    ),
    Mutation(
        "accounting/composition.py",
        "single examples have sensitivity C/K in a partition too",
        'alone = header.sampling == "poisson" and header.per_example',
        "alone = header.per_example",
        (SENSITIVITY, METHODS),
    ),
    Mutation(
        "accounting/composition.py",
        "shared auxiliaries have sensitivity C/K under Poisson sampling",
        'alone = header.sampling == "poisson" and header.per_example',
        'alone = header.sampling == "poisson"',
        (COMPOSITION,),
    ),
    Mutation(
        "accounting/composition.py",
        "rounding is not accounted",
        "tuple(reach * c + r for c, r",
        "tuple(reach * c + 0.0 * r for c, r",
        (COMPOSITION,),
    ),
    Mutation(
        "accounting/composition.py",
        "only the largest block counts",
        "return sum(\n        math.inf",
        "return max(\n        math.inf",
        (POISSON, COMPOSITION),
    ),
    Mutation(
        "accounting/composition.py",
        "a step without noise costs nothing",
        "math.inf if noise == 0 else squared(most / noise)",
        "0.0 if noise == 0 else squared(most / noise)",
        (COMPOSITION,),
    ),
    Mutation(
        "accounting/composition.py",
        "what auxiliaries remember does not count",
        'if header.memory == "auxiliary" or header.unit != "example":',
        'if header.unit != "example":',
        (COMPOSITION,),
    ),
    Mutation(
        "accounting/composition.py",
        "shards and users are accounted like examples",
        'if header.memory == "auxiliary" or header.unit != "example":',
        'if header.memory == "auxiliary":',
        (COMPOSITION,),
    ),
    Mutation(
        "accounting/composition.py",
        "steps that are taken again cost nothing",
        "bisect_left(edges, stop)] += square",
        "bisect_left(edges, stop)] = square",
        (COMPOSITION,),
    ),
    Mutation(
        "accounting/composition.py",
        "reshuffling is not accounted",
        "_worst_of_epochs if header.reshuffle else _worst_position",
        "_worst_position",
        (COMPOSITION,),
    ),
    Mutation(
        "accounting/composition.py",
        "what is left of whole epochs costs nothing",
        "return whole + max((cost for _, _, cost in _added(rest)), default=0.0)",
        "return whole",
        (COMPOSITION,),
    ),
    Mutation(
        "accounting/cost.py",
        "Poisson: half the rate",
        "sampling_prob=rate,",
        "sampling_prob=rate / 2,",
        (COMPOSITION,),
    ),
    Mutation(
        "accounting/cost.py",
        "Poisson: half the steps",
        "compose(one.self_compose(rest))",
        "compose(one.self_compose(-(-rest // 2)))",
        (COMPOSITION,),
    ),
    Mutation(
        "accounting/cost.py",
        "Poisson: of a long run only the rest is composed",
        "        if many:\n",
        "        if False:\n",
        (POISSON,),
    ),
    Mutation(
        "accounting/cost.py",
        "Poisson: many values of μ are rounded down",
        "if other == rate), reverse=True)",
        "if other == rate))",
        (POISSON,),
    ),
    Mutation(
        "accounting/composition.py",
        "epochs between the first and the last of a run cost nothing",
        "total += dearest + (cost * between if between else 0.0)",
        "total += dearest",
        (COMPOSITION,),
    ),
    Mutation(
        "accounting/composition.py",
        "the part of a run that goes round into the next epoch costs nothing",
        "if first + left > batches:",
        "if False:",
        (COMPOSITION,),
    ),
    Mutation(
        "accounting/cost.py",
        "Poisson: replace-one is accounted as zero-out",
        "NeighboringRelation.REPLACE_ONE",
        "NeighboringRelation.ADD_OR_REMOVE_ONE",
        (POISSON,),
    ),
    Mutation(
        "accounting/cost.py",
        "Poisson: what float64 misplaces is not taken off δ",
        "whole.get_epsilon_for_delta(delta - misplaced)",
        "whole.get_epsilon_for_delta(delta)",
        (f"{POISSON}::test_the_smallest_delta_is_accounted_from_above",),
    ),
    Mutation(
        "accounting/cost.py",
        "Poisson: ROUNDOFF is a thousandth",
        "ROUNDOFF = 2.0**-50",
        "ROUNDOFF = 2.0**-60",
        (f"{POISSON}::test_a_smaller_delta_is_refused",),
    ),
    Mutation(
        "accounting/cost.py",
        "Poisson: a δ that cannot be computed is accepted",
        "if delta < 4.0 * misplaced:",
        "if False:",
        (f"{POISSON}::test_a_smaller_delta_is_refused",),
    ),
    Mutation(
        "accounting/cost.py",
        "Poisson without a grid: half of μ",
        "epsilon_of(math.hypot(cost.mu, cost.everyone), delta)",
        "epsilon_of(math.hypot(cost.mu, cost.everyone / 2), delta)",
        (f"{POISSON}::test_hardly_any_noise_is_accounted_at_once_and_from_above", METHODS),
    ),
    Mutation(
        "accounting/composition.py",
        "Poisson without a grid: one step",
        "total = sum(s * r.steps for s, r",
        "total = sum(s for s, r",
        (f"{POISSON}::test_hardly_any_noise_is_accounted_at_once_and_from_above",),
    ),
    Mutation(
        "accounting/gaussian.py",
        "ε is rounded down",
        "low, high = (low, middle) if reached(middle) else (middle, high)\n    return high",
        "low, high = (low, middle) if reached(middle) else (middle, high)\n    return low",
        (METHODS,),
    ),
    Mutation(
        "accounting/gaussian.py",
        "δ(ε) without its second term",
        "first + math.log(-math.expm1(second - first)) if second < first else -math.inf",
        "first - math.log(2) if second < first else -math.inf",
        (GAUSSIAN,),
    ),
    Mutation(
        "accounting/renyi.py",
        "the conversion from Rényi without log δ",
        "- (np.log(delta) + np.log(orders)) / (orders - 1)",
        "- (0.5 * np.log(delta) + np.log(orders)) / (orders - 1)",
        ("tests/accounting/test_paper.py::test_rdp_conversion",),
    ),
    Mutation(
        "accounting/pate.py",
        "an answer costs half",
        "return order / sigma**2",
        "return order / (2.0 * sigma**2)",
        (PATE,),
    ),
    Mutation(
        "accounting/__init__.py",
        "a δ of 1/n and more is accepted",
        "if delta >= 1.0 / number and not allow_large:",
        "if False:",
        (COMPOSITION,),
    ),
    Mutation(
        "accounting/__init__.py",
        "a δ outside 0 … 1 is accepted",
        "if not (isinstance(delta, float) and 0.0 < delta < 1.0):",
        "if False:",
        (COMPOSITION,),
    ),
    Mutation(
        "accounting/__init__.py",
        "a large δ is not warned of",
        "if delta > 0.1 / number:",
        "if False:",
        (COMPOSITION,),
    ),
    Mutation(
        "accounting/__init__.py",
        "account() does not look at δ",
        "    check_delta(delta, header.examples, header.counted, allow_large=allow_large_delta)\n",
        "",
        (COMPOSITION,),
    ),
    Mutation(
        "accounting/__init__.py",
        "numbers that no run can have are accounted",
        "    check_ledger(ledger)\n",
        "",
        (COMPOSITION,),
    ),
    Mutation(
        "accounting/__init__.py",
        "a rate above 1 is accounted",
        "if not 0.0 < header.rate <= 1.0:",
        "if False:",
        (COMPOSITION,),
    ),
    Mutation(
        "accounting/__init__.py",
        "a contraction above 1 is accounted",
        "if not 0.0 < setting.contraction <= 1.0:",
        "if False:",
        (COMPOSITION,),
    ),
    Mutation(
        "accounting/__init__.py",
        "whether a ledger is closed is not passed on",
        "        closed=ledger.closed,\n",
        "",
        (HOLES_LEDGER,),
    ),
    Mutation(
        "accounting/composition.py",
        "Poisson: what auxiliaries remember is accounted as if it were forgotten",
        '        if header.memory == "auxiliary":\n            return (\n',
        "        if False:\n            return (\n",
        (TABLE,),
    ),
    Mutation(
        "accounting/composition.py",
        "Poisson: shards and users are accounted like examples",
        '        if header.unit != "example":\n',
        "        if False:\n",
        (TABLE,),
    ),
    Mutation(
        "accounting/composition.py",
        "Poisson: replacing an example of shared auxiliaries is accounted like removing it",
        'if header.relation == "replace-one" and not header.per_example:',
        "if False:",
        (TABLE,),
    ),
    Mutation(
        "accounting/guarantee.py",
        "a bound on Algorithm 1 holds for every method",
        'if header.method != "dpdt":',
        "if False:",
        (TABLE,),
    ),
    Mutation(
        "accounting/guarantee.py",
        "a bound on partitions holds for Poisson sampling",
        'if header.sampling != "partition":',
        "if False:",
        (TABLE,),
    ),
    Mutation(
        "accounting/guarantee.py",
        "a bound holds for runs that it is not about",
        "            unsupported is None,\n",
        "            True,\n",
        (TABLE,),
    ),
    Mutation(
        "accounting/guarantee.py",
        "a claim is printed as what holds",
        "_bound(g, further) for g in others if g.valid]",
        "_bound(g, further) for g in others]",
        (TABLE,),
    ),
    Mutation(
        "accounting/guarantee.py",
        "a run without a headline does not say so",
        "lines = [self._unproven() if proven is None else",
        "lines = [] if proven is None else [",
        (TABLE,),
    ),
    Mutation(
        "accounting/guarantee.py",
        "a fixed seed is private",
        "            ledger.header.private,\n",
        "            True,\n",
        (COMPOSITION,),
    ),
    Mutation(
        "accounting/guarantee.py",
        "voids void nothing",
        "            not ledger.voids,\n",
        "            True,\n",
        (CONFORMANCE,),
    ),
    Mutation(
        "accounting/guarantee.py",
        "claims count as proven",
        "if g.valid\n            and",
        "if",
        (CONFORMANCE,),
    ),
    Mutation(
        "accounting/guarantee.py",
        "an upper bound is printed rounded to the nearest",
        "shown(g.epsilon, ROUND_CEILING)",
        "shown(g.epsilon)",
        (CONFORMANCE,),
    ),
    Mutation(
        "accounting/guarantee.py",
        "what a ledger without an end says is called proven",
        '("proven", "holds") if self.closed else ("so far", "so far")',
        '("proven", "holds")',
        (COMPOSITION, TABLE),
    ),
    Mutation(
        "reading.py",
        "pipes and devices are read like files",
        "if not stat.S_ISREG(mode):",
        "if False:",
        (FILES_OF_OTHERS,),
    ),
    Mutation(
        "data/encoding.py",
        "a number outside of its range is taken as it is",
        "[(min(max(number, low), high) - low) / (high - low)]",
        "[(number - low) / (high - low)]",
        (TABLES,),
    ),
    Mutation(
        "data/encoding.py",
        "a message shows what a cell holds",
        'f"{where}: is a text, and a number is declared"',
        'f"{where}: {cell} is a text, and a number is declared"',
        (TABLES,),
    ),
    Mutation(
        "data/encoding.py",
        "columns of a release are in another order than in training",
        "[[name, list(v)] for name, v in self.columns]",
        "sorted([name, list(v)] for name, v in self.columns)",
        (TABLES,),
    ),
    Mutation(
        "data/tables.py",
        "whether a row is held out depends on the rows before it",
        'coin = _digest(f"{digest.hex()} {seen[digest]}")',
        'coin = _digest(f"{sum(seen.values())}")',
        (TABLES,),
    ),
    Mutation(
        "config/sections.py",
        "a replaced row may be held out",
        "                self.data.test is None,\n",
        "                False,\n",
        (TABLES,),
    ),
    Mutation(
        "config/sections.py",
        "a replaced row may be left out",
        "                self.data.missing == DROP,\n",
        "                False,\n",
        (TABLES,),
    ),
    Mutation(
        "config/sections.py",
        "only a relation that is asked for counts",
        'self.method.relation(self.privacy) == "replace-one"',
        'self.privacy.relation == "replace-one"',
        (TABLES,),
    ),
    Mutation(
        "data/tables.py",
        "runs on one table that hold out different rows are not added up",
        "        digests += digest\n",
        "        digests += digest[:0] if held_out else digest\n",
        (TABLES,),
    ),
    Mutation(
        "data/sheets.py",
        "the first line of a table is shown, which may be a record",
        "close = meant(column, self.names)",
        'close = f"; there are {self.names}"',
        (TABLES,),
    ),
    Mutation(
        "config/starting.py",
        "a column's name becomes lines of a configuration",
        "line = _line(**{name: OPEN})",
        'line = f\'"{name}" = "{OPEN}"\'',
        ("tests/cli/test_files.py",),
    ),
    Mutation(
        "data/npz.py",
        "an array is as large as it says",
        "if dtype.hasobject or stored.bytes != info.file_size - member.tell():",
        "if False:",
        (FILES_OF_OTHERS,),
    ),
    Mutation(
        "data/batches.py",
        "a batch may name any function",
        "raise ValueError(f\"it asks for {name.replace(' ', '.')}, which is not an array\")",
        "return _Array()",
        (FILES_OF_OTHERS,),
    ),
    Mutation(
        "ledger/lines.py",
        "values of any type are read",
        "if not holds(value):",
        "if False:",
        ("tests/ledger/test_ledger.py",),
    ),
    Mutation(
        "algorithm/schedule.py",
        "a boundary of a schedule is passed over",
        "return self.epochs[passed] if passed < len(self.epochs) else math.inf",
        "return self.epochs[-1] if passed < len(self.epochs) else math.inf",
        ("tests/algorithm/test_schedule.py",),
    ),
    Mutation(
        "training/turns.py",
        "two threads take steps at the same time",
        "if not self._stepping.acquire(blocking=False):",
        "if not self._stepping.acquire(blocking=True):",
        ("tests/training/test_turns.py",),
    ),
    Mutation(
        "training/turns.py",
        "a step does not wait for what is being recorded",
        "            with self._lock:\n                yield\n",
        "            yield\n",
        ("tests/training/test_turns.py",),
    ),
    Mutation(
        "algorithm/randomness.py",
        "threads draw from each other's generators",
        "    with _LOCK:\n",
        "    with threading.RLock():\n",
        ("tests/training/test_turns.py",),
    ),
    Mutation(
        "training/loader.py",
        "data are checked while another thread reads them",
        "            with kept():  # not while another thread reads\n",
        "            if True:\n",
        ("tests/training/test_turns.py",),
    ),
    Mutation(
        "algorithm/randomness.py",
        "a fork waits for a thread that it does not have",
        "    _LOCK = threading.RLock()\n\n\nif",
        "    _LOCK = _LOCK\n\n\nif",
        ("tests/training/test_turns.py",),
    ),
    Mutation(
        "training/turns.py",
        "a step is taken in a forked process",
        "        self._noise.refuse_fork()\n        if not",
        "        if not",
        ("tests/training/test_turns.py",),
    ),
    Mutation(
        "ledger/writer.py",
        "a forked process writes its parent's ledger",
        "if os.getpid() != self._process:",
        "if False:",
        ("tests/training/test_turns.py",),
    ),
    Mutation(
        "training/step.py",
        "a step can be copied",
        "class Step(Single):",
        "class Step:",
        ("tests/training/test_turns.py",),
    ),
    Mutation(
        "accounting/guarantee.py",
        "an open end is not told",
        "if not self.closed:",
        "if False:",
        (COMPOSITION,),
    ),
    Mutation(
        "accounting/paper.py",
        "the paper's bound is called valid",
        'text="the step on θ contracts by 1 − η_θ",\n                holds=False,',
        'text="the step on θ contracts by 1 − η_θ",\n                holds=True,',
        (CONFORMANCE,),
    ),
    Mutation(
        "accounting/calibrate.py",
        "the noise is rounded down",
        "first, second = second, middle\n    return high",
        "first, second = second, middle\n    return low",
        (COMPOSITION, CALIBRATE),
    ),
    Mutation(
        "accounting/calibrate.py",
        "bisection keeps the side that misses the target",
        "if spent(middle) > target else (low, middle)",
        "if spent(middle) > 1.01 * target else (low, middle)",
        (COMPOSITION, CALIBRATE),
    ),
    Mutation(
        "accounting/calibrate.py",
        "an estimate is taken for what was accounted",
        "found = _searched(epsilon, spent, start, stride, tolerance) if math.isfinite(start) else",
        "found = start if math.isfinite(start) else",
        (CALIBRATE,),
    ),
    Mutation(
        "accounting/calibrate.py",
        "a start that misses the target is kept",
        "if target * (1.0 - tolerance) <= spent(start) <= target:",
        "if target * (1.0 - tolerance) <= spent(start) <= 1.5 * target:",
        (CALIBRATE,),
    ),
    Mutation(
        "report/loopback.py",
        "the explorer answers by any name",
        "if host not in hosts or (",
        "if (",
        (f"{EXPLORE}::test_another_host_is_refused",),
    ),
    Mutation(
        "report/loopback.py",
        "the explorer answers other sites",
        '(origin is not None and origin != f"http://{host}")',
        "False",
        (f"{EXPLORE}::test_another_origin_is_refused",),
    ),
    Mutation(
        "report/loopback.py",
        "the explorer needs no token",
        'return hmac.compare_digest(token.encode("utf-8", "replace"), self._token.encode())',
        "return True",
        (f"{EXPLORE}::test_who_has_not_the_token_is_refused",),
    ),
    Mutation(
        "report/loopback.py",
        "the explorer listens on every network",
        'HOST = "127.0.0.1"',
        'HOST = "0.0.0.0"',
        (f"{EXPLORE}::test_it_listens_on_loopback_alone_and_answers_who_has_the_address",),
    ),
    Mutation(
        "report/exploring.py",
        "the explorer accounts at another δ",
        "account(ledger, asked.delta, allow",
        "account(ledger, asked.delta * 2, allow",
        (f"{EXPLORE}::test_the_numbers_are_those_of_the_command_and_of_the_file",),
    ),
    Mutation(
        "report/choices.py",
        "the copied command leaves an override out",
        "for change in self.overrides + changes:",
        "for change in changes:",
        (f"{EXPLORE}::test_the_numbers_are_those_of_the_command_and_of_the_file",),
    ),
    Mutation(
        "report/explorer.py",
        "what is refused leaves the settings to copy",
        'return [refused, [], "", "", "", {"turn": turn}]',
        'return [refused, [], no_update, no_update, "", {"turn": turn}]',
        (f"{EXPLORE}::test_whatever_is_typed_is_a_position_or_one_sentence",),
    ),
    Mutation(
        "accounting/calibrate.py",
        "noise is calibrated by a bound that does not hold",
        "refused = not guarantee.valid and ledger.header.private and not claimed",
        "refused = False",
        (CALIBRATE,),
    ),
    Mutation(
        "accounting/calibrate.py",
        "noise is calibrated to a claim that nobody asked for",
        "claimed: bool = False,",
        "claimed: bool = True,",
        (CALIBRATE,),
    ),
    Mutation(
        "accounting/allocate.py",
        "a held total is exceeded",
        "if at(middle) > target else (low, middle)",
        "if at(middle) > 1.01 * target else (low, middle)",
        (ALLOCATE, ALLOCATION),
    ),
    Mutation(
        "methods/plan.py",
        "calibrated noise is 1 % less",
        "recipe = replace(self.recipe, noise=times(self.recipe.noise))",
        "recipe = replace(self.recipe, noise=times([0.99 * s for s in self.recipe.noise]))",
        (f"{TRAIN}::test_one_call_trains_and_returns_model_privacy_and_history", METHODS),
    ),
    Mutation(
        "methods/plan.py",
        "calibrated noise is 1 % less (dpsgd, gep, pate)",
        "replace(s, noise=times(s.noise))",
        "replace(s, noise=times([0.99 * n for n in s.noise]))",
        (f"{DPSGD}::test_a_target_is_met", METHODS),
    ),
]

HIDDEN = [
    Mutation(
        "accounting/hidden_state.py",
        "valid whatever leaves",
        'ledger.header.release == "last" and not seen,',
        "not seen,",
        (CONFORMANCE,),
    ),
    Mutation(
        "accounting/hidden_state.py",
        "valid whatever was exported",
        'ledger.header.release == "last" and not seen,',
        'ledger.header.release == "last",',
        (CONFORMANCE,),
    ),
    Mutation(
        "accounting/hidden_state.py",
        "valid for an average of iterates",
        '*(["an average of all iterates"] if ledger.header.averaging else [])',
        "",
        (CONFORMANCE,),
    ),
    Mutation(
        "accounting/hidden_state.py",
        "valid though steps were taken again",
        "            not ledger.repeats,\n",
        "            True,\n",
        (CONFORMANCE,),
    ),
    Mutation(
        "accounting/hidden_state.py",
        "convex: valid without a bound on gradients",
        "known = h.gradient_bound is not None and h.smoothness is not None",
        "known = True",
        (CONFORMANCE,),
    ),
    Mutation(
        "accounting/hidden_state.py",
        "convex: valid with memory",
        'if header.memory != "none":',
        "if False:",
        (CONFORMANCE,),
    ),
    Mutation(
        "accounting/hidden_state.py",
        "convex: valid with a preconditioner",
        '            h.preconditioner == "identity",\n',
        "            True,\n",
        (CONFORMANCE,),
    ),
    Mutation(
        "accounting/hidden_state.py",
        "convex: valid with several penalties",
        "            h.one_penalty,\n",
        "            True,\n",
        (CONFORMANCE,),
    ),
    Mutation(
        "accounting/hidden_state.py",
        "convex: valid with weight decay on auxiliaries",
        "            h.auxiliary_weight_decay == 0,\n",
        "            True,\n",
        (CONFORMANCE,),
    ),
    Mutation(
        "accounting/hidden_state.py",
        "convex: valid under Poisson sampling",
        "unless_algorithm_1(header) or unless_partition(header) or remembers",
        "unless_algorithm_1(header) or remembers",
        (CONFORMANCE,),
    ),
    Mutation(
        "accounting/hidden_state.py",
        "convex: valid for shards and users",
        'h.unit == "example" and whole,',
        "whole,",
        (CONFORMANCE,),
    ),
    Mutation(
        "accounting/hidden_state.py",
        "convex: valid within an epoch",
        'h.unit == "example" and whole,',
        'h.unit == "example",',
        (CONFORMANCE,),
    ),
    Mutation(
        "accounting/hidden_state.py",
        "convex: valid with schedules",
        "constant = len({run.setting for run in ledger.runs}) <= 1",
        "constant = True",
        (CONFORMANCE,),
    ),
    Mutation(
        "accounting/hidden_state.py",
        "convex: valid though contributions are clipped",
        "known and least * ROOM >= reach,",
        "known,",
        (CONFORMANCE,),
    ),
    Mutation(
        "accounting/hidden_state.py",
        "convex: valid with any step size",
        "known and step <= limit,",
        "known,",
        (CONFORMANCE,),
    ),
    Mutation(
        "accounting/hidden_state.py",
        "convex: the step size may be 4/β",
        "limit = 2.0 / h.smoothness",
        "limit = 4.0 / h.smoothness",
        (METHODS,),
    ),
    Mutation(
        "accounting/hidden_state.py",
        "convex: the largest micro-batch instead of the smallest",
        "least = max(1, h.examples // (h.batches * h.auxiliaries))",
        "least = max(1, -(-h.examples // (h.batches * h.auxiliaries)))",
        (CONFORMANCE,),
    ),
    Mutation(
        "accounting/hidden_state.py",
        "convex: half the sensitivity",
        "moved = 2.0 * _reach(setting",
        "moved = _reach(setting",
        (CONFORMANCE,),
    ),
    Mutation(
        "accounting/hidden_state.py",
        "convex: rounding is not accounted",
        "sensitivity = moved + _rounding(setting)",
        "sensitivity = moved",
        (CONFORMANCE,),
    ),
    Mutation(
        "accounting/hidden_state.py",
        "convex: the largest noise counts",
        "sigma = min(setting.noise)",
        "sigma = max(setting.noise)",
        (CONFORMANCE,),
    ),
    Mutation(
        "accounting/hidden_state.py",
        "contraction: valid without weight decay",
        "contracts = all(s.contraction < 1 for s in settings)",
        "contracts = True",
        (CONFORMANCE,),
    ),
    Mutation(
        "accounting/hidden_state.py",
        "contraction: valid with a noise schedule",
        "len({(s.noise, s.step_size, s.contraction) for s in settings}) <= 1",
        "len({(s.step_size, s.contraction) for s in settings}) <= 1",
        (CONFORMANCE,),
    ),
    Mutation(
        "accounting/hidden_state.py",
        "contraction: valid with a schedule of step sizes",
        "len({(s.noise, s.step_size, s.contraction) for s in settings}) <= 1",
        "len({(s.noise, s.contraction) for s in settings}) <= 1",
        (CONFORMANCE,),
    ),
    Mutation(
        "accounting/hidden_state.py",
        "contraction: the first run's clip only",
        "steps = [_displacements(run.setting) for run in ledger.runs]",
        "steps = [_displacements(run.setting) for run in ledger.runs[:1]]",
        (CONFORMANCE,),
    ),
    Mutation(
        "accounting/hidden_state.py",
        "contraction: C for 2C",
        "tuple(2.0 * c + r for c, r",
        "tuple(c + r for c, r",
        (CONFORMANCE,),
    ),
    Mutation(
        "accounting/hidden_state.py",
        "contraction: rounding is not accounted",
        "tuple(2.0 * c + r for c, r",
        "tuple(2.0 * c + 0.0 * r for c, r",
        (CONFORMANCE,),
    ),
    Mutation(
        "accounting/hidden_state.py",
        "contraction: valid with a shared preconditioner",
        'h.preconditioner == "identity" and h.auxiliary_weight_decay == 0\n        )',
        "h.auxiliary_weight_decay == 0\n        )",
        (CONFORMANCE,),
    ),
    Mutation(
        "accounting/hidden_state.py",
        "contraction: valid with weight decay on shared auxiliaries",
        'h.preconditioner == "identity" and h.auxiliary_weight_decay == 0\n        )',
        'h.preconditioner == "identity"\n        )',
        (CONFORMANCE,),
    ),
    Mutation(
        "accounting/hidden_state.py",
        "contraction: valid for any number of sampled examples",
        'bounded and not (h.sampling == "poisson" and h.per_example),',
        "bounded,",
        (f"{POISSON}::test_the_paper_and_hidden_state_do_not_speak_of_poisson",),
    ),
    Mutation(
        "accounting/hidden_state.py",
        "contraction: the shared multiplier is not accounted",
        '        if h.memory == "shared":\n',
        "        if False:\n",
        (CONFORMANCE,),
    ),
    Mutation(
        "models/bounds.py",
        "gradients are bounded by R, not √2·R",
        "gradient=math.sqrt(2.0 * squared)",
        "gradient=math.sqrt(squared)",
        (CONVEX,),
    ),
    Mutation(
        "models/bounds.py",
        "the bias is not in the bounds",
        "squared = radius**2 + 1.0",
        "squared = radius**2",
        (CONVEX,),
    ),
    Mutation(
        "models/bounds.py",
        "half the smoothness",
        "smoothness=squared / 2.0",
        "smoothness=squared / 4.0",
        (CONVEX,),
    ),
    Mutation(
        "models/networks.py",
        "BoundedLinear passes on what is not finite",
        "        x = torch.where(finite, x, 0.0)\n",
        "",
        (METHODS,),
    ),
    Mutation(
        "models/networks.py",
        "BoundedLinear exceeds its radius",
        "self.radius * (1.0 - 1e-6)",
        "self.radius * (1.0 + 1e-3)",
        (CONVEX, METHODS),
    ),
    Mutation(
        "models/networks.py",
        "bounds for models that train more than their head",
        "if isinstance(head, BoundedLinear) and trained <= {id(p) for p in head.parameters()}:",
        "if isinstance(head, BoundedLinear) and trained:",
        (CONVEX,),
    ),
]

RUNS = [
    Mutation(
        "training/run.py",
        "resume: nothing is compared",
        'refuse_changes(path, state["depends"], depends)',
        "pass",
        (RESUMED,),
    ),
    Mutation(
        "training/depends.py",
        "resume: the configuration is not compared",
        '"configuration": config.as_tables(),',
        '"configuration": None,',
        (RESUMED,),
    ),
    Mutation(
        "training/depends.py",
        "resume: the code is not compared",
        '"version of dpdt": code_hash(Path(__file__).parents[1]),',
        '"version of dpdt": None,',
        (RUN,),
    ),
    Mutation(
        "training/depends.py",
        "resume: versions are not compared",
        "            *(m.__version__ for m in (torch, numpy, randomgen)),\n",
        "",
        (RESUMED,),
    ),
    Mutation(
        "training/depends.py",
        "resume: the machine is not compared",
        "MACHINE: machine,",
        "MACHINE: None,",
        (RESUMED,),
    ),
    Mutation(
        "training/depends.py",
        "resume: the start of the model is not compared",
        '"start of the model": start,',
        '"start of the model": None,',
        (RUN,),
    ),
    Mutation(
        "training/depends.py",
        "resume: the data are not compared",
        '"training data or public inputs": [fingerprint(part, world) for part in seen],',
        '"training data or public inputs": None,',
        (f"{RESUME}::test_what_cannot_be_resumed",),
    ),
    Mutation(
        "training/recorder.py",
        "nothing is checked at a checkpoint",
        "        self.step.check()\n        self.step.agree()",
        "        self.step.agree()",
        (RUN,),
    ),
    Mutation(
        "training/recorder.py",
        "the ledger is not on the disk before a checkpoint",
        "        self.step.agree()\n        self.step.writer.sync()",
        "        self.step.agree()",
        (RUN,),
    ),
    Mutation(
        "training/outcome.py",
        "an interrupted run shows its model though only the last iterate leaves",
        'shown = finished or step.plan.training.privacy.release != "last"',
        "shown = True",
        (LAST,),
    ),
    Mutation(
        "training/outcome.py",
        "a finished run keeps its noise stream",
        "            folder.remove_checkpoint()\n",
        "            pass\n",
        (METHODS_ALL,),
    ),
    Mutation(
        "training/spent.py",
        "an ε is written where nothing is guaranteed",
        "return (bound.epsilon if bound.valid else math.inf), None",
        "return bound.epsilon, None",
        (f"{RESUME}::test_no_epsilon_is_written_where_nothing_is_guaranteed",),
    ),
    Mutation(
        "runs/checkpoint.py",
        "a checkpoint's checksum is not looked at",
        "if digest.digest() != head[16:]:",
        "if False:",
        (f"{SURVIVAL}::test_every_flipped_or_missing_byte_of_a_checkpoint_is_noticed",),
    ),
    Mutation(
        "runs/checkpoint.py",
        "a checkpoint's length is not looked at",
        "if HEAD + length != size:",
        "if False:",
        (f"{SURVIVAL}::test_every_flipped_or_missing_byte_of_a_checkpoint_is_noticed",),
    ),
    Mutation(
        "runs/checkpoint.py",
        "a checkpoint may run code",
        "weights_only=True",
        "weights_only=False",
        (f"{SURVIVAL}::test_no_code_in_a_checkpoint_is_run",),
    ),
    Mutation(
        "files.py",
        "a file replaces another before it is on the disk",
        "            sync(part)\n            os.replace(part, path)\n",
        "            os.replace(part, path)\n",
        (f"{SURVIVAL}::test_what_replaces_a_file_is_on_the_disk_first",),
    ),
    Mutation(
        "runs/lock.py",
        "two processes write to one folder",
        "fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "pass",
        (f"{SURVIVAL}::test_a_second_process_is_told_that_one_is_writing",),
    ),
    Mutation(
        "training/run.py",
        "there is no checkpoint before the first step",
        "recorder.checkpoint()  # the noise's key, before anything is spent",
        "pass",
        (
            f"{RESUME}::test_a_checkpoint_is_there_before_the_first_step_and_then_as_often_as_wanted",
        ),
    ),
    Mutation(
        "training/run.py",
        "a run is resumed while another process writes to it",
        "        if folder is not None:\n            held.enter_context(folder.locked())\n",
        "",
        (f"{SURVIVAL}::test_a_second_process_is_told_that_one_is_writing",),
    ),
    Mutation(
        "ledger/writer.py",
        "a ledger that has ended takes another step",
        "        if self.ledger.closed:\n            raise",
        "        if False:\n            raise",
        (f"{SURVIVAL}::test_a_ledger_that_has_ended_takes_no_step",),
    ),
    Mutation(
        "training/outcome.py",
        "the checkpoint goes before the model is kept",
        "        if self.shown:\n            folder.save_model(model)\n",
        "        folder.remove_checkpoint()\n        if self.shown:\n"
        "            folder.save_model(model)\n",
        (f"{SURVIVAL}::test_a_model_that_cannot_be_kept_leaves_a_run_that_goes_on",),
    ),
    Mutation(
        "runs/__init__.py",
        "accuracies after each epoch are public",
        'SHOWN = ("epoch", "step", "epsilon")',
        'SHOWN = ("epoch", "step", "epsilon", "accuracy", "loss")',
        (f"{CLI}::test_train_then_account", RUN),
    ),
    Mutation(
        "runs/__init__.py",
        "diagnostics are public",
        "append_line(self._private(DIAGNOSTICS), record)",
        "append_line(self.path / DIAGNOSTICS, record)",
        (f"{CLI}::test_diagnostics_are_private",),
    ),
    Mutation(
        "runs/__init__.py",
        "others may read private/",
        "(path / PRIVATE).mkdir(mode=0o700)",
        "(path / PRIVATE).mkdir()",
        (f"{CLI}::test_train_then_account", RUN),
    ),
    Mutation(
        "runs/__init__.py",
        "a run may overwrite another",
        "path.mkdir(parents=True)",
        "path.mkdir(parents=True, exist_ok=True)",
        (f"{CLI}::test_a_run_is_never_overwritten",),
    ),
    Mutation(
        "training/grid.py",
        "a comparison deletes what an interrupted run left",
        "folder.rename(aside)",
        '__import__("shutil").rmtree(folder)',
        (LEFTOVERS,),
    ),
    Mutation(
        "training/grid.py",
        "a comparison moves a finished run away",
        "if folder.result() is None and folder.ledger().closed:",
        "if False:",
        (RUN,),
    ),
    Mutation(
        "training/grid.py",
        "a comparison mixes runs of other settings",
        "if settings.as_tables() != folder.config.as_tables():",
        "if False:",
        (RUN,),
    ),
]

DEVICES = [
    Mutation(
        "algorithm/layout.py",
        "norms are computed where there is no float64",
        "    except (RuntimeError, TypeError, NotImplementedError):\n        return False",
        "    except (RuntimeError, TypeError, NotImplementedError):\n        return True",
        (f"{ELSEWHERE}::test_flat_buffers_are_where_float64_is",),
    ),
    Mutation(
        "algorithm/randomness.py",
        "what a model draws on a GPU depends on who was computed before",
        "        device.manual_seed_all(number)\n",
        "        pass\n",
        (f"{ELSEWHERE}::test_what_a_model_draws_on_a_gpu_is_its_own_too",),
    ),
    Mutation(
        "algorithm/randomness.py",
        "the generators of a GPU are not set back",
        "            device.set_rng_state_all(states)\n",
        "            pass\n",
        (f"{ELSEWHERE}::test_what_a_model_draws_on_a_gpu_is_its_own_too",),
    ),
    Mutation(
        "training/device.py",
        "a GPU may give other bits when a step is repeated",
        "        torch.use_deterministic_algorithms(True)\n",
        "        pass\n",
        (f"{ELSEWHERE}::TestRepeatable",),
    ),
    Mutation(
        "training/step.py",
        "steps are not repeatable",
        "            with repeatable(self.loader.device):\n",
        "            if True:\n",
        (f"{ELSEWHERE}::TestRepeatable",),
    ),
    Mutation(
        "training/depends.py",
        "a run is resumed on another device",
        '"device": facts(device),',
        '"device": [],',
        (f"{ELSEWHERE}::TestChoice",),
    ),
    Mutation(
        "algorithm/precision.py",
        "autocast keeps weights between auxiliaries",
        "cache_enabled=False",
        "cache_enabled=True",
        (PRECISION,),
    ),
    Mutation(
        "algorithm/precision.py",
        "a loss stays in bfloat16",
        "self.loss(model, data).float()",
        "self.loss(model, data)",
        (PRECISION,),
    ),
    Mutation(
        "algorithm/ways.py",
        "places are compared where bfloat16 hides their differences",
        "if not size or (isinstance(owner.loss, Lowered) and not batch.fixed):",
        "if not size:",
        (PRECISION,),
    ),
    Mutation(
        "methods/dpdt/__init__.py",
        "bounds by construction are claimed for bfloat16",
        'problem.bounds if train.precision == "float32" else None',
        "problem.bounds",
        (PRECISION,),
    ),
    Mutation(
        "training/ahead.py",
        "a checkpoint holds the coins of what was read ahead",
        "return self._ahead[0][1] if self._ahead else self.coins.secrets()",
        "return self.coins.secrets()",
        (AHEAD,),
    ),
    Mutation(
        "training/ahead.py",
        "coins that were seen are tossed away",
        "if not (isinstance(self.sampler, PoissonSampler) and self.sampler.groups == 1):",
        "if True:",
        (AHEAD,),
    ),
    Mutation(
        "training/ahead.py",
        "resume: coins that were tossed before are used",
        "        self._ahead.clear()\n        self.coins.resume(kept)",
        "        self.coins.resume(kept)",
        (AHEAD,),
    ),
    Mutation(
        "training/loader.py",
        "a batch that failed leaves its coins to the next",
        "            self.draws.use(step)\n            raise",
        "            raise",
        (AHEAD,),
    ),
    Mutation(
        "training/loader.py",
        "a batch that was looked at is not compared",
        'if "data" in vars(batch):',
        "if False:",
        (AHEAD,),
    ),
    Mutation(
        "training/loader.py",
        "a batch is a view of the training data",
        "tree_map(lambda t: t[numbers], self.data)",
        "tree_map(lambda t: t[int(numbers[0]) : int(numbers[0]) + len(numbers)], self.data)",
        (AHEAD,),
    ),
]

RANKS = [
    Mutation(
        "training/streams.py",
        "every rank draws noise of its own",
        "return Randomness(seeds[0], from_first=world.from_first), coins",
        "return Randomness(seeds[0]), coins",
        (SHARES,),
    ),
    Mutation(
        "distributed/world.py",
        "ranks do not add up their sums",
        "            told, total = buffer[: len(told)], buffer[len(told) :]\n",
        "            told = buffer[: len(told)]\n",
        (RANKS_EQUAL,),
    ),
    Mutation(
        "distributed/world.py",
        "ranks that hold other parameters go on",
        "if int(squares) * self.size != int(marks) ** 2:",
        "if False:",
        (SHARES,),
    ),
    Mutation(
        "distributed/world.py",
        "a rank that found something is only heard as lost",
        'return Tainted(text) if kind == "tainted" else Lost(text)',
        "return Lost(text)",
        (RANKS_FAIL,),
    ),
    Mutation(
        "distributed/world.py",
        "ranks that were started differently go on",
        "                if a != b:\n",
        "                if False:\n",
        (RANKS_FAIL,),
    ),
    Mutation(
        "distributed/share.py",
        "ranks share an auxiliary",
        "number * (rank + 1) // size)",
        "number * (rank + 1) // size + 1)",
        (SHARES,),
    ),
    Mutation(
        "partition.py",
        "which rank computes an example depends on who else was drawn",
        "own = (chosen >= mine.start) & (chosen < mine.stop)",
        "own = np.arange(len(chosen)) % size == rank",
        (SHARES,),
    ),
    Mutation(
        "partition.py",
        "keys follow the place in data whose number of examples is private",
        "if self.unnumbered:\n            keys",
        "if False:\n            keys",
        (SENSITIVITY,),
    ),
    Mutation(
        "algorithm/batch.py",
        "ranks number their auxiliaries from 0",
        "own = range(self.first, self.first + len(self.sizes))",
        "own = range(len(self.sizes))",
        (SHARES,),
    ),
    Mutation(
        "algorithm/engine.py",
        "every rank takes the first penalties",
        "setting.penalties[batch.first : batch.first + len(batch.sizes)]",
        "setting.penalties[: len(batch.sizes)]",
        (RANKS_EQUAL,),
    ),
    Mutation(
        "training/ranks.py",
        "a user may have examples on several ranks",
        "if seen.setdefault(one, rank) != rank:",
        "if False:",
        (LOCAL,),
    ),
    Mutation(
        "training/step.py",
        "what left another rank is not recorded",
        "                self.writer.export(what)\n            for why in dict",
        "                pass\n            for why in dict",
        (RANKS_FAIL,),
    ),
    Mutation(
        "training/depends.py",
        "another number of ranks repeats the noise",
        "return then.get(RANKS) == now[RANKS]",
        "return True",
        (RANKS_RESUME,),
    ),
    Mutation(
        "training/recorder.py",
        "fresh noise is drawn before it is kept",
        "        if not exact:\n            self.checkpoint()\n",
        "",
        (RANKS_RESUME,),
    ),
    Mutation(
        "training/step.py",
        "PATE's questions are asked again by another number of ranks",
        "                if since:\n",
        "                if False:\n",
        (RANKS_RESUME,),
    ),
]

TAPPED = [
    Mutation(
        "algorithm/passes.py",
        "a pass is repeated on places where nobody stands",
        "rows = chunk[chunk >= 0]",
        "rows = chunk",
        ("tests/algorithm/test_taps.py",),
    ),
    Mutation(
        "parts.py",
        "of products only the first stretch is added",
        "        for first in range(0, max(1, len(self.left)), self.step):\n",
        "        for first in range(0, max(1, len(self.left)), self.step)[:1]:\n",
        ("tests/algorithm/test_bound.py",),
    ),
    Mutation(
        "parts.py",
        "what cancels counts by the rows of a stretch",
        "_guarded(found, effort, len(self.left), left.shape[1], width)",
        "_guarded(found, effort, len(left), left.shape[1], width)",
        ("tests/algorithm/test_bound.py",),
    ),
    Mutation(
        "algorithm/ways.py",
        "kernels are looked for on the data",
        "model, data = owner.copy(), made_up(batch.data, owner.expected)",
        "model, data = owner.copy(), batch.slice(0, owner.expected)",
        (KERNELS,),
    ),
    Mutation(
        "algorithm/kernels.py",
        "channels come last where a norm sees frozen features",
        "    return named and node.next_functions[0][0] is None\n",
        "    return False\n",
        (f"{KERNELS}::test_the_graph_of_a_loss_shows_what_it_calls",),
    ),
    Mutation(
        "algorithm/kernels.py",
        "channels come last where a convolution skips places",
        "    return set(node._saved_weight.shape[2:]) == {1}\n",
        "    return False\n",
        (f"{KERNELS}::test_the_graph_of_a_loss_shows_what_it_calls",),
    ),
    Mutation(
        "algorithm/kernels.py",
        "channels come last where the graph does not show what is called",
        "    return isinstance(node, BackwardCFunction)\n",
        "    return False\n",
        (KERNELS,),
    ),
    Mutation(
        "training/loader.py",
        "examples with channels last stay so",
        "data=tree_map(channels_first, moved),",
        "data=moved,",
        (KERNELS,),
    ),
    Mutation(
        "training/loop.py",
        "weights with channels last stay so",
        "    lay_first(model)\n",
        "",
        (KERNELS,),
    ),
    Mutation(
        "parts.py",
        "what cancels in a Gram matrix is taken for the norm",
        "torch.maximum(found + lost * effort, effort * (rows * positions / TERMS) ** 2)",
        "found",
        ("tests/algorithm/test_bound.py", "tests/algorithm/test_layers.py"),
    ),
    Mutation(
        "parts.py",
        "lookups of one row are taken for lookups of several",
        "        slot[:, 1:] = (ordered[:, 1:] != ordered[:, :-1]).cumsum(1)\n",
        "        slot = torch.arange(slot.shape[1]).expand_as(slot).clone()\n",
        ("tests/algorithm/test_bound.py", "tests/algorithm/test_layers.py"),
    ),
    Mutation(
        "parts.py",
        "weights are left out of a norm",
        "left[:, 0].square() @ self.weights.square()",
        "left[:, 0].square() @ torch.ones_like(self.weights)",
        ("tests/algorithm/test_bound.py", "tests/algorithm/test_layers.py"),
    ),
    Mutation(
        "mechanism.py",
        "what a rule makes of a contribution is not bounded",
        "        reached = least * factors\n",
        "        reached = least.clone()\n",
        ("tests/algorithm/test_bound.py", "tests/algorithm/test_layers.py"),
    ),
    Mutation(
        "mechanism.py",
        "norms that underflow are taken as they are",
        "        least = norms.clamp_min(TINY)\n",
        "        least = norms\n",
        ("tests/test_mutants.py::TestCore",),
    ),
    Mutation(
        "algorithm/taps.py",
        "a second path to the loss is not looked for",
        "            wrong |= self._used_elsewhere(model, loss, data, keyed, weights)\n",
        "",
        ("tests/algorithm/test_layers.py",),
    ),
    Mutation(
        "algorithm/taps.py",
        "what a layer has besides counts as accounted for",
        "            if own in KNOWN and _join(layer, own)",
        "            if _join(layer, own)",
        ("tests/algorithm/test_layers.py",),
    ),
    Mutation(
        "lattice.py",
        "terms that cancel are not accounted",
        "(2.0**-51 * terms + 2.0**-31) * terms",
        "2.0**-51 * terms * terms",
        ("tests/test_mutants.py::TestLattice",),
    ),
    Mutation(
        "algorithm/taps.py",
        "taps that are wrong are used",
        '                        wrong.add(name.rpartition(".")[0])\n',
        "                        pass\n",
        ("tests/algorithm/test_layers.py",),
    ),
    Mutation(
        "algorithm/taps.py",
        "other layers are called than on made-up inputs",
        "            elif heard.names != self.names:\n",
        "            elif False:\n",
        ("tests/algorithm/test_taps.py",),
    ),
    Mutation(
        "algorithm/ways.py",
        "taps are set where bfloat16 hides what places do",
        "    blind = isinstance(owner.loss, Lowered) and not batch.fixed\n",
        "    blind = False\n",
        (PRECISION,),
    ),
    Mutation(
        "noise.py",
        "draws that were made ahead are handed out twice",
        "        draws, self._draws = self._draws, None\n",
        "        draws = self._draws\n",
        ("tests/algorithm/test_noise.py",),
    ),
]

USED = [
    Mutation(
        "releasing/loading.py",
        "a model that is not the certificate's is used",
        "hash_of(place) != digest:",
        "hash_of(place) != digest and name == FILE:",
        ("tests/releasing/test_loading.py",),
    ),
    Mutation(
        "releasing/loading.py",
        "weights of another type are cast",
        "tuple(tensor.shape) or kind != tensor.dtype:",
        "tuple(tensor.shape):",
        ("tests/releasing/test_loading.py",),
    ),
    Mutation(
        "releasing/loading.py",
        "a folder's sizes are believed",
        "    _refuse_others(empty, inside.checked(path, WEIGHTS))\n",
        "",
        ("tests/releasing/test_loading.py",),
    ),
    Mutation(
        "releasing/description.py",
        "a newer format is guessed",
        "if version > FORMAT:",
        "if version > FORMAT + 1:",
        ("tests/releasing/test_loading.py",),
    ),
    Mutation(
        "releasing/description.py",
        "a path of the user's machine is published",
        "asdict(replace(config.model, tokenizer=None, dictionary_from=None))",
        "asdict(config.model)",
        ("tests/releasing/test_loading.py",),
    ),
    Mutation(
        "releasing/export.py",
        "the path of the base model is published",
        '{"base_model_name_or_path": None, "inference_mode": True}',
        '{"inference_mode": True}',
        ("tests/releasing/test_export.py",),
    ),
    Mutation(
        "releasing/inputs.py",
        "inputs on another scale are taken",
        " & (x == np.trunc(x))",
        "",
        ("tests/releasing/test_predict.py",),
    ),
    Mutation(
        "data/rows.py",
        "an array's size is believed",
        "if length + math.prod(shape) * dtype.itemsize != size:",
        "if length > size:",
        ("tests/releasing/test_predict.py",),
    ),
]

TUNING = ("tests/accounting/test_tuning.py",)
TUNE = ("tests/training/test_tune.py",)
TUNES = [
    Mutation(
        "accounting/tuning.py",
        "that there are several runs costs nothing",
        "return divergences + runs * deltas + math.log(mean) / (ORDERS - 1.0)",
        "return divergences + math.log(mean) / (ORDERS - 1.0)",
        TUNING,
    ),
    Mutation(
        "accounting/tuning.py",
        "the mean number of runs is forgotten",
        "runs * deltas + math.log(mean) / (ORDERS - 1.0)",
        "runs * deltas",
        TUNING,
    ),
    Mutation(
        "accounting/tuning.py",
        "one direction of sampling counts",
        "pairs = ((up, down), (down, up))",
        "pairs = ((down, up),)",
        TUNING,
    ),
    Mutation(
        "accounting/cost.py",
        "the cheapest setting of a tune counts",
        "divergences = np.max([cost.divergences(relation)",
        "divergences = np.min([cost.divergences(relation)",
        TUNING,
    ),
    Mutation(
        "accounting/cost.py",
        "a tune beside other runs is lost",
        "            tunes=tuple(tune for cost in found for tune in cost.tunes),\n",
        "",
        TUNING,
    ),
    Mutation(
        "accounting/composition.py",
        "the score of a run of a tune is not counted",
        "costs.add(Cost(mu=1.0 / tuned.noise))",
        "costs.add(Cost())",
        TUNING,
    ),
    Mutation(
        "accounting/composition.py",
        "a run that lost its tune is proven like the chosen one",
        "if ledger.closed and not tuned.chosen:",
        "if False:",
        TUNING,
    ),
    Mutation(
        "accounting/guarantee.py",
        "a bound on the last iterate holds for the best of several runs",
        'if ledger.tuned is None or accountant.name == "composition" else [NOT_OF_A_TUNE]',
        "",
        TUNING,
    ),
    Mutation(
        "ledger/lines.py",
        "a run that is none of the candidates is taken for one",
        "if own not in [candidate.header for candidate in candidates]:",
        "if False:",
        ("tests/ledger/test_tuned.py",),
    ),
    Mutation(
        "releasing/found.py",
        "two tunes that began as one count once",
        "not (earlier.closed or earlier.runs) and ledger.tuned",
        "ledger.tuned",
        TUNE,
    ),
    Mutation(
        "training/tune.py",
        "a run of a tune that was begun is made again",
        'if not goes_on and coins["begun"] == number and not (there',
        "if False and not (there",
        TUNE,
    ),
    Mutation(
        "runs/__init__.py",
        "a run of a tune whose ledger has steps is made again",
        "return not (ledger.runs or ledger.forks)",
        "return True",
        TUNE,
    ),
    Mutation(
        "training/tune.py",
        "other data are scored on with the same noise",
        'refuse_changes(path, begun.coins()["depends"], ',
        'max(path, begun.coins()["depends"], key=str); (',
        TUNE,
    ),
    Mutation(
        "accounting/several.py",
        "copies of a tune count as independent",
        "if number > 1}",
        "if False}",
        TUNE,
    ),
    Mutation(
        "training/run.py",
        "every run of a tune says its size",
        "if tuned is None:  # of which nobody is to know how many there are",
        "if True:",
        TUNE,
    ),
    Mutation(
        "training/tune.py",
        "scores have no noise",
        'score = round(accuracy * held_out) + coins["noise"][number]',
        "score = round(accuracy * held_out)",
        TUNE,
    ),
    Mutation(
        "training/tune.py",
        "the ledger of a run does not know of its tune",
        "        tuned=opening.tuned,\n",
        "",
        TUNE,
    ),
    Mutation(
        "runs/tune.py",
        "runs that have lost stay",
        "        for name in (RUNS, CANDIDATES):\n",
        "        for name in (CANDIDATES,):\n",
        TUNE,
    ),
]

PAGE, ATTACKER = ("tests/report/test_page.py",), ("tests/report/test_attacker.py",)
PAGES = [
    Mutation(
        "report/facts.py",
        "private files are read unasked",
        "_private(run, ledger) if private else None",
        "_private(run, ledger)",
        PAGE,
    ),
    Mutation(
        "report/facts.py",
        "a certificate that was changed is believed",
        'if named and certificates.digest(body) == body["digest"]:',
        "if named:",
        PAGE,
    ),
    Mutation("report/pages.py", "nothing is escaped", "autoescape=True", "autoescape=False", PAGE),
    Mutation(
        "report/pages.py",
        "any script may run",
        "script-src {allowed(scripts)};",
        "script-src {allowed(scripts)} 'unsafe-eval';",
        PAGE,
    ),
    Mutation(
        "report/pages.py",
        "everyone may read a private page",
        "os.fchmod(file, 0o600)",
        "os.fchmod(file, 0o644)",
        PAGE,
    ),
    Mutation(
        "report/charts.py",
        "names are HTML in charts",
        'html.escape(text).replace("%", "&#37;")',
        "text",
        PAGE,
    ),
    Mutation(
        "report/attacker.py",
        "the bound on true positives forgets δ",
        "* rate + delta)",
        "* rate)",
        ATTACKER,
    ),
    Mutation(
        "report/attacker.py",
        "δ helps the other bound",
        "(1.0 - delta - rate)",
        "(1.0 + delta - rate)",
        ATTACKER,
    ),
    Mutation(
        "report/attacker.py",
        "the probability to be right forgets δ",
        "(1.0 - d) * math.exp(-e)",
        "math.exp(-e)",
        ATTACKER,
    ),
    Mutation(
        "report/attacker.py",
        "shares are rounded down",
        "math.ceil(share * 1e4)",
        "math.floor(share * 1e4)",
        ATTACKER,
    ),
]

FIRST_HOUR = ("tests/training/test_first_hour.py",)
GIVEN = [
    Mutation(
        "data/each.py",
        "a collate function sees an example and its neighbour",
        "self.collate([self.source[number]])",
        "self.collate([self.source[number], self.source[(number + 1) % len(self.source)]])",
        FIRST_HOUR,
    ),
    Mutation(
        "data/each.py",
        "an example may have another shape or type than the others",
        "if form_of(one) != self.form:",
        "if False:",
        FIRST_HOUR,
    ),
    Mutation(
        "data/each.py",
        "what is read may depend on what was read before",
        "if form_of(again) != self.form or not alike(first, again):",
        "if form_of(again) != self.form:",
        FIRST_HOUR,
    ),
    Mutation(
        "data/state.py",
        "what reading an example has changed stays",
        "        self._put_back()\n        return row",
        "        return row",
        ("tests/data/test_state.py",),
    ),
    Mutation(
        "data/state.py",
        "a Dataset's own generators go on from where they stand",
        "            self.near.seed(own)\n",
        "            pass\n",
        ("tests/data/test_state.py",),
    ),
    Mutation(
        "data/state.py",
        "containers with many members are never put back",
        "if not self.careful and self._written():",
        "if False:",
        ("tests/data/test_state.py",),
    ),
    Mutation(
        "data/state.py",
        "no example is read again after the others",
        "if not alike(rows[chosen], self.one(*pairs[chosen], seed, step, get)):",
        "if False:",
        ("tests/data/test_state.py",),
    ),
    Mutation(
        "data/state.py",
        "a change of a large array is not noticed",
        "        if what := self._lasting():\n            raise written(what)",
        "        self._lasting()",
        ("tests/data/test_state.py",),
    ),
    Mutation(
        "training/loader.py",
        "what is found while reading does not void the run",
        "            self.void(str(error))\n",
        "            pass\n",
        ("tests/data/test_state.py",),
    ),
    Mutation(
        "training/watching.py",
        "an epoch's guarantee is computed twice",
        "        elif self.callbacks or self.display.enabled:\n",
        "        if self.callbacks or self.display.enabled:\n",
        ("tests/training/test_doubts.py",),
    ),
    Mutation(
        "training/doubts.py",
        "nobody is told of inputs that are not finite",
        "    if odd:\n",
        "    if False:\n",
        ("tests/training/test_doubts.py",),
    ),
    Mutation(
        "training/doubts.py",
        "nobody is told of held-out examples that are trained on",
        "    if test is not None and (",
        "    if False and (",
        ("tests/training/test_doubts.py",),
    ),
    Mutation(
        "data/given.py",
        "a Dataset is read as it is, and torch finds a type for each batch",
        "    return Each(data, what, collate)\n\n\ndef _of_loader",
        "    return data\n\n\ndef _of_loader",
        FIRST_HOUR,
    ),
    Mutation(
        "data/given.py",
        "what a masked array hides is trained on",
        "if isinstance(array, np.ma.MaskedArray):",
        "if False:",
        FIRST_HOUR,
    ),
    Mutation(
        "data/given.py",
        "a DataLoader that iterates its own way is passed over",
        "if any(getattr(kind, n) is not getattr(DataLoader, n)",
        "if any(False",
        FIRST_HOUR,
    ),
    Mutation(
        "data/given.py",
        "the sampler that a DataLoader does not use is looked at",
        "batches.sampler if plain else loader.sampler",
        "loader.sampler",
        ("tests/test_elsewhere.py",),
    ),
    Mutation(
        "releasing/description.py",
        "a number of layers beyond 64 bits is built",
        "MANY.search(str(key)) and isinstance(value, int) and value > MOST",
        "MANY.search(str(key)) and is_integer(value) and value > MOST",
        ("tests/releasing/test_tokens.py",),
    ),
    Mutation(
        "releasing/tokens.py",
        "texts are padded to whatever length a release says",
        "max(1, longest)), self.pad)",
        "self.length), self.pad)",
        ("tests/releasing/test_tokens.py",),
    ),
    Mutation(
        "data/given.py",
        "a sampler of one's own is passed over",
        "if not plain or sampler.data_source is not loader.dataset:",
        "if False:",
        FIRST_HOUR,
    ),
    Mutation(
        "data/frames.py",
        "which categories occur decides a warning",
        "    if _look_found(column):\n",
        "    if len(np.unique(codes)) == len(_categories(column) or ()):\n",
        (PUBLIC_BYTES,),
    ),
    Mutation(
        "cli/train.py",
        "a log says whether contributions were finite",
        "if outcome.nonfinite and console.on_terminal():",
        "if outcome.nonfinite:",
        (PUBLIC_BYTES,),
    ),
    Mutation(
        "data/frames.py",
        "categories are those that occur",
        "np.arange(len(declared))",
        "np.unique(codes)",
        FIRST_HOUR,
    ),
    Mutation(
        "models/loss.py",
        "targets are broadcast over outputs, so that examples meet",
        "            targets = numberwise(outputs, targets)\n        elif",
        "            targets = targets.to(outputs.dtype)\n        elif",
        FIRST_HOUR,
    ),
    Mutation(
        "models/loss.py",
        "class weights are divided away",
        "            self.by_example = True\n",
        "            self.module.reduction = 'mean'\n",
        FIRST_HOUR,
    ),
    Mutation(
        "models/trial.py",
        "held-out examples are first looked at when they are measured",
        "if test is not None and count(test):",
        "if False:",
        FIRST_HOUR,
    ),
    Mutation(
        "models/loss.py",
        "a loss keeps what it saw from one call to the next",
        "        before.put_back()  # what it keeps would carry one example to the next\n",
        "",
        ("tests/models/test_loss.py",),
    ),
    Mutation(
        "models/suits.py",
        "targets that no output stands for are trained on",
        "if y.numel() and not bool(((y >= 0) & (y <= most)).all()):",
        "if False:",
        FIRST_HOUR,
    ),
]

MUTATIONS = [
    *MECHANISM, *STREAM, *LEDGERS, *SAMPLING, *EXECUTOR, *ENGINES, *STEPS, *PLANS, *ACCOUNTING,
    *HIDDEN, *RUNS, *DEVICES, *FEATURES, *RANKS, *TAPPED, *USED, *RELEASES,
    *TUNES, *PAGES, *GIVEN,
]  # fmt: skip


def why_not(mutation: Mutation) -> str | None:
    """Why a mutation no longer applies, if so."""
    path = ROOT / PACKAGE / mutation.file
    text = path.read_text("utf-8") if path.is_file() else ""
    if (number := text.count(mutation.old)) != 1:
        return f"the text to break occurs {number} times"
    try:
        compile(text.replace(mutation.old, mutation.new), mutation.file, "exec")
    except SyntaxError as error:
        return f"the broken text is no Python ({error})"
    return None


def pytest(copy: Path, *arguments: str, patience: float | None = None) -> tuple[int, list[str]]:
    """The exit status of pytest in the copy, and the tests that failed."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(copy / "src"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "DPDT_CASES": CASES,
        THREADS: "1",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    try:
        done = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, text=True, timeout=patience
        )
    except subprocess.TimeoutExpired:
        return 1, ["it hangs"]
    lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    failed = [line.split(" ", 1)[1].split(" - ")[0] for line in lines]
    if done.returncode not in (0, 1):
        failed.append(f"{(done.stdout + done.stderr)[-2000:]}\nstatus {done.returncode}")
    return done.returncode, failed


def copied(copy: Path) -> None:
    """Copy the project, without what training at its root has left."""
    ignore = shutil.ignore_patterns(*LEFT_OUT)

    def left_out(folder: str, names: list[str]) -> set[str]:
        return {*ignore(folder, names), *({"runs", "compare"} if Path(folder) == ROOT else ())}

    shutil.copytree(ROOT, copy, ignore=left_out)


def failing(copy: Path, tests: Iterable[str]) -> list[str]:
    """Tests that fail without any mutation."""
    status, failed = pytest(copy, *tests)
    if status not in (0, 1):
        sys.exit(f"the tests cannot be run:\n{failed[-1]}")
    return failed


def judged(
    copy: Path, mutation: Mutation, tests: Sequence[str], known: list[str]
) -> tuple[str, str]:
    """Whether these tests notice the mutation, and which does first; those `known` do not count."""
    path = copy / PACKAGE / mutation.file
    whole = path.read_text("utf-8")
    path.write_text(whole.replace(mutation.old, mutation.new), "utf-8")
    left_out = [f"--deselect={test}" for test in known]
    try:
        status, failed = pytest(copy, "-x", *left_out, *tests, patience=PATIENCE)
    finally:
        path.write_text(whole, "utf-8")
    if status == 0:
        return SURVIVED, ""
    return (CAUGHT, failed[0]) if status == 1 else (UNCLEAR, failed[-1].splitlines()[-1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--list", action="store_true", help="print the mutations, break nothing")
    parser.add_argument("--only", default="", metavar="TEXT", help="in the file or description")
    parser.add_argument("--whole", action="store_true", help="the whole suite for survivors")
    given = parser.parse_args()
    chosen = [m for m in MUTATIONS if given.only in m.file or given.only in m.what]
    if given.list:
        for m in chosen:
            print(f"{m.file}: {m.what}")
        return 0
    stale = {m: why for m in chosen if (why := why_not(m))}
    for m, why in stale.items():
        print(f"no longer applies  {m.file}: {m.what} ({why})", flush=True)
    chosen = [m for m in chosen if m not in stale]
    verdicts: dict[Mutation, str] = {}
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        copy = Path(folder) / "project"
        copied(copy)
        known = failing(copy, dict.fromkeys(t for m in chosen for t in m.tests)) if chosen else []
        for test in known:
            print(f"fails by itself    {test}", flush=True)
        for m in chosen:
            start = time.perf_counter()
            verdicts[m], by = judged(copy, m, m.tests, known)
            took = f"{time.perf_counter() - start:4.0f} s"
            print(f"{verdicts[m]:9}{took}  {m.file}: {m.what}  [{by}]", flush=True)
        left = [m for m in chosen if verdicts[m] != CAUGHT]
        if given.whole and left:
            known = failing(copy, ())
            for m in left:
                verdicts[m], by = judged(copy, m, (), known)
                print(f"{verdicts[m]:9}whole suite  {m.file}: {m.what}  [{by}]", flush=True)
    for m in chosen:
        if verdicts[m] != CAUGHT:
            print(f"{verdicts[m].upper()}  {m.file}: {m.what}")
    counts = {kind: list(verdicts.values()).count(kind) for kind in (CAUGHT, SURVIVED, UNCLEAR)}
    print(", ".join(f"{n} {kind}" for kind, n in counts.items() if n or kind != UNCLEAR))
    return 0 if counts[CAUGHT] == len(chosen) and not stale else 1


if __name__ == "__main__":
    sys.exit(main())
