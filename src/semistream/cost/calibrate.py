"""Unit costs of this machine, measured in a few seconds.

c_IO is measured by reading runs of pages and nothing else. All other unit costs are measured where
they occur, in the joins: each of some short runs took so many seconds and did so much of everything
(both are known), and the unit costs are what explains the seconds best. Timed alone, a probe or an
append would find everything in the processor's caches, and would cost a fraction.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
import pyarrow as pa

from semistream.core.clock import Clock, SystemClock
from semistream.core.errors import BudgetError, OptionError
from semistream.cost import MODELS
from semistream.cost.frequencies import Frequencies
from semistream.cost.model import far, looked_up
from semistream.cost.units import COST_NAMES, Costs, Loop, ReadCost, UnitCosts, counted
from semistream.joins.indexed import SPARE_ROWS
from semistream.joins.operator import Operator
from semistream.joins.registry import make_join
from semistream.kernels.timing import read_only_runs
from semistream.store.build import build_master
from semistream.store.file import IO_MODES, FileMaster, open_master

ROWS = 800_000
"""Rows of the master that joins are timed on: more than the processor's last cache holds."""

PAYLOAD_BYTES = 88
STREAM_ROWS = 400_000
BATCH_ROWS = 65_536
SIZES = (1_200_000, 4_000_000, 16_000_000)
"""Memories at which joins are timed: within the processor's nearest caches, and beyond them."""

SLICES = 3
RUN_S = 0.15
WARM_S, LONGEST_WARM_S = 0.1, 1.0
READ_LENGTHS = (1, 2, 4, 8, 16, 32)
READ_BUFFER_PAGES = 256
PRIOR_WEIGHT = 0.02
"""How much of a run's weight the guess of a unit cost has that runs cannot tell from others."""

KNOWN_WEIGHT = 100.0

PRIOR = Costs(
    read=5e-9,
    append=4e-8,
    expire=1.5e-7,
    probe=4e-8,
    result=6e-8,
    compare=5e-8,
    watch=3e-8,
    look_up=7e-8,
    find=6e-8,
    cached=2e-8,
    hit=1e-7,
    behind=3e-8,
    far=2e-7,
    page=1e-6,
    call=2e-4,
)
"""What each unit cost is about, on machines of the last years."""


@dataclass(frozen=True)
class Timed:
    """A short run of a join: what it did, and how long it took."""

    join: str
    loop: Loop
    seconds: float


@dataclass(frozen=True)
class Run:
    """What to run: a join with some options on a stream with some skew."""

    join: str
    skew: float = 0.0
    options: Mapping[str, Any] = field(default_factory=dict)


RUNS = (
    Run("meshjoin"),
    Run("meshjoin", options={"chunk": 65_536}),
    Run("meshjoin", skew=1.0),
    Run("cmeshjoin", skew=1.0),
    Run("ssbj"),
    Run("hybridjoin"),
    Run("hybridjoin", options={"partition_pages": 8}),
    Run("hybridjoin", skew=1.0),
    Run("cachejoin", skew=1.0),
    Run("optimisedxhybridjoin", skew=1.0),
    Run("inlj"),
    Run("ssij"),
    Run("sweepjoin"),
    Run("sweepjoin", skew=1.0),
    Run("ssij", skew=1.0),
    Run("partitionedjoin"),
    Run("memoryjoin"),
)


BEHIND_A_CACHE = ("cmeshjoin", "ssbj", "cachejoin", "optimisedxhybridjoin", "sweepjoin")
"""Of these, joins with a cache of rows."""


@dataclass(frozen=True)
class Calibration:
    """Unit costs with the host that they are of, and how well they explain the runs."""

    costs: UnitCosts
    host: Mapping[str, Any]
    date: str
    errors: Mapping[str, float] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Write it as JSON, at once or not at all."""
        plain = {
            "host": dict(self.host),
            "date": self.date,
            "errors": dict(self.errors),
            "costs": self.costs.to_dict(),
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_suffix(".new")
        beside.write_text(json.dumps(plain, indent=1) + "\n")
        beside.rename(path)

    @classmethod
    def load(cls, path: Path) -> Calibration:
        """What `save` wrote. That of another host is used, with a warning."""
        try:
            plain = json.loads(path.read_text())
            found = cls(
                UnitCosts.from_dict(plain["costs"]), plain["host"], plain["date"], plain["errors"]
            )
        except FileNotFoundError:
            raise OptionError(
                f"there is no calibration {str(path)!r}",
                hint="leave it out, and this machine is measured",
            ) from None
        except (ValueError, KeyError, TypeError) as error:
            raise OptionError(
                f"{str(path)!r} is not a calibration: {error}",
                hint="write one with `semistream tune --calibrate`",
            ) from None
        other = [
            f"{name} {found.host.get(name)!r} instead of {here!r}"
            for name, here in host().items()
            if found.host.get(name) != here
        ]
        if other:
            warnings.warn(
                f"{str(path)!r} was measured on another host ({', '.join(other)}): "
                "predictions may be off",
                stacklevel=2,
            )
        return found


def default_path() -> Path:
    """Where the calibration of this host is kept."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "semistream" / "calibration.json"


def host() -> dict[str, Any]:
    """What unit costs depend on."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "system": platform.system(),
    }


def calibrated(path: Path | None = None, *, folder: Path | None = None) -> Calibration:
    """The calibration that is kept at `path`; without one there, this machine is measured."""
    kept = path or default_path()
    if kept.exists() or path is not None:
        return Calibration.load(kept)
    made = calibrate(folder)
    made.save(kept)
    return made


def calibrate(
    folder: Path | None = None,
    *,
    sizes: Sequence[int] = SIZES,
    clock: Clock | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> Calibration:
    """Measure this machine; `folder` says on which disk."""
    clock = clock or SystemClock()
    with tempfile.TemporaryDirectory(dir=folder, prefix="semistream-calibration-") as made:
        path = Path(made) / "calibration.master"
        build_master(path, _master_rows(), "key")
        read = {}
        for io in IO_MODES:
            with open_master(path, io=io) as master:
                read[io] = measure_reads(master, clock)
            tell(f"{io} reads: {read[io].request_s * 1e6:.1f} µs a request, "
                 f"{read[io].page_s * 1e6:.2f} µs a page")  # fmt: skip
        fitted: list[tuple[int, Costs]] = []
        errors: dict[str, float] = {}
        with open_master(path) as master:
            streams = {skew: _stream(skew) for skew in {run.skew for run in RUNS}}
            for run in RUNS:
                _time(master, run, max(sizes), streams[run.skew], clock, 0.0)
            for size in sorted(sizes):
                timed = []
                for run in RUNS:
                    try:
                        timed.append(_time(master, run, size, streams[run.skew], clock, RUN_S))
                    except BudgetError:  # a join that needs more than this size
                        continue
                # A call costs the same at every size, and is seen best where there are most.
                known = {"call": fitted[0][1].call} if fitted else {}
                costs, off = fit(timed, read["buffered"], known)
                fitted.append((size, costs))
                errors[str(size)] = off
                tell(f"joins with {size:,} bytes: explained to {off:.0%}")
    today = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    return Calibration(UnitCosts(tuple(fitted), read), host(), today, errors)


# Reads.


def measure_reads(master: FileMaster, clock: Clock) -> ReadCost:
    """c_IO(b) = request + b · page, over runs of several lengths at random places."""
    generator = np.random.default_rng(1)
    lengths, seconds = [], []
    for length in READ_LENGTHS:
        length = min(length, max(master.pages // 2, 1))
        count = max(2048 // length, 64)
        starts = generator.integers(0, max(master.pages - length, 1), count)
        runs = np.stack([starts, np.full(count, length)], axis=1).astype(np.int64)
        best = np.inf
        for _ in range(SLICES):
            reader = master.reader(READ_BUFFER_PAGES)
            try:
                begin = clock.now_ns()
                if not read_only_runs(reader.ring.kernel, runs):
                    raise reader.error()
                best = min(best, (clock.now_ns() - begin) / 1e9 / count)
            finally:
                reader.close()
        lengths.append(float(length))
        seconds.append(best)
    x, y = np.array(lengths), np.array(seconds)
    # Relative errors count, so that one page is fitted as well as many.
    matrix = np.stack([np.ones_like(x), x], axis=1) / y[:, None]
    request, page = nonnegative(matrix, np.ones_like(y))
    return ReadCost(float(request), float(page))


# Joins.


def _time(
    master: FileMaster,
    run: Run,
    memory: int,
    stream: Sequence[pa.RecordBatch],
    clock: Clock,
    seconds: float,
) -> Timed:
    """The best of some slices of a warm join."""
    whole = run.join == "memoryjoin"
    operator = make_join(
        run.join,
        master,
        on="key",
        schema=stream[0].schema,
        memory=2 * master.data_bytes + memory if whole else memory,
        clock=clock,
        seed=1,
        **run.options,
    )
    with operator:
        calls = _calls(operator, stream)
        _warm_up(operator, calls, master.pages if seconds else 0, clock)
        best: Timed | None = None
        for _ in range(SLICES if seconds else 1):
            done = _slice(master, operator, run, calls, clock, seconds / SLICES)
            if best is None or done.seconds / done.loop.rows < best.seconds / best.loop.rows:
                best = done
    assert best is not None
    return best


def _warm_up(operator: Operator, calls: Iterator[bool], pages: int, clock: Clock) -> None:
    """Feed until the memory is full and one pass over the master has gone by, if time allows."""
    begin, full_at = clock.now_ns(), -1
    while True:
        refused = next(calls)
        read, spent = operator.stats.pages_read, (clock.now_ns() - begin) / 1e9
        if refused and full_at < 0:
            full_at = read
        if spent >= LONGEST_WARM_S or (full_at >= 0 and read - full_at >= pages):
            return
        if spent >= WARM_S and operator.name == "memoryjoin":
            return


def _calls(operator: Operator, stream: Sequence[pa.RecordBatch]) -> Iterator[bool]:
    """Offers a stream for ever; each turn is a push and, if rows were refused (True), a step."""
    for batch in cycle(stream):
        rest = batch
        while rest.num_rows:
            accepted = operator.push(rest)
            rest = rest.slice(accepted)
            if rest.num_rows:
                operator.step()
            else:
                operator.take()
            yield rest.num_rows > 0


def _slice(
    master: FileMaster,
    operator: Operator,
    run: Run,
    calls: Iterator[bool],
    clock: Clock,
    seconds: float,
) -> Timed:
    before, turns = operator.stats, 0
    begin = clock.now_ns()
    while True:
        next(calls)
        turns += 1
        took = (clock.now_ns() - begin) / 1e9
        if took >= seconds and operator.stats.rows_in > before.rows_in:
            break
    after = operator.stats
    did = after.since(before)
    rows = max(float(did.rows_in - after.rows_waiting + before.rows_waiting), 1.0)
    model = MODELS[run.join]
    cached = run.join in BEHIND_A_CACHE
    hits = float(did.hits) if cached else 0.0
    at_once = run.join == "memoryjoin"
    waits = 0.0 if at_once else max(rows - hits, 0.0)
    asked = Frequencies.zipf(ROWS, run.skew)
    waiting = max(float(after.rows_waiting), 1.0)
    behind = max(1 - asked.distinct(waiting) / waiting, 0.0) if not hits else 0.0
    share = hits / rows
    free = waits / turns
    if run.join == "sweepjoin":
        looked = rows + SPARE_ROWS * turns
    elif run.join in ("ssij", "memoryjoin"):
        looked = rows
    else:
        looked = looked_up(free, share) * turns
    scans = not model.by_index
    probes = did.pages_read * master.rows / master.pages if scans else 0.0
    return Timed(
        run.join,
        Loop(
            rows=rows,
            hits=hits,
            waits=waits,
            found=rows if at_once else 0.0,
            behind=waits * behind,
            far=0.0 if scans else waits * far(operator.plan["read buffer"]),
            results=float(did.rows_out),
            looked_up=0.0 if scans else looked * (1 - share),
            cache_looked_up=(rows if scans else looked) if cached else 0.0,
            probes=probes,
            offered=waits if run.join in ("cachejoin", "cmeshjoin", "sweepjoin") else 0.0,
            watched=probes * 2 / 3 if run.join == "ssbj" else 0.0,
            pages=float(did.pages_read),
            requests=float(did.requests),
            calls=float(turns),
        ),
        took,
    )


def fit(
    timed: Sequence[Timed], read: ReadCost, known: Mapping[str, float] | None = None
) -> tuple[Costs, float]:
    """The unit costs that explain the runs best, none below zero; and the median error left.

    Relative errors count. Where runs cannot tell two costs apart, they stay near what is usual;
    `known` ones stay what they are.
    """
    rows, busy = [], []
    for one in timed:
        by_index = MODELS[one.join].by_index
        counts = counted(one.loop, by_index=by_index)
        io = one.loop.requests * read.request_s + one.loop.pages * read.page_s
        rows.append([counts[name] / one.seconds for name in COST_NAMES])
        busy.append(1 - io / one.seconds)
    prior = np.array([getattr(PRIOR, name) for name in COST_NAMES])
    matrix = np.array(rows) * prior
    target = np.array(busy)
    weight, usual = np.full(len(prior), PRIOR_WEIGHT), np.ones(len(prior))
    for name, value in (known or {}).items():
        at = COST_NAMES.index(name)
        weight[at], usual[at] = KNOWN_WEIGHT, value / prior[at]
    scale = nonnegative(
        np.concatenate([matrix, np.diag(weight)]), np.concatenate([target, weight * usual])
    )
    off = np.abs(matrix @ scale - target)
    costs = dict(zip(COST_NAMES, (scale * prior).tolist(), strict=True))
    return Costs(**costs), float(np.median(off))


def nonnegative(
    matrix: npt.NDArray[np.float64], target: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Least squares without values below zero (Lawson and Hanson)."""
    n = matrix.shape[1]
    x: npt.NDArray[np.float64] = np.zeros(n)
    free = np.zeros(n, bool)
    for _ in range(4 * n):
        gradient = matrix.T @ (target - matrix @ x)
        gradient[free] = -np.inf
        if gradient.max() <= 1e-10:
            break
        free[int(gradient.argmax())] = True
        while True:
            trial = np.zeros(n)
            trial[free] = np.linalg.lstsq(matrix[:, free], target, rcond=None)[0]
            below = free & (trial <= 0)
            if not below.any():
                x = trial
                break
            way = np.min(x[below] / (x[below] - trial[below]))
            x = x + way * (trial - x)
            free &= x > 1e-15
    return x


# Data.


def _master_rows() -> pa.Table:
    generator = np.random.default_rng(2)
    payload = generator.bytes(ROWS * PAYLOAD_BYTES)
    info = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(PAYLOAD_BYTES), ROWS, [None, pa.py_buffer(payload)]
    )
    numbers = np.arange(ROWS)
    return pa.table(
        {"key": numbers, "a": numbers, "b": numbers.astype(np.float64), "c": numbers, "info": info}
    )


def _stream(skew: float) -> list[pa.RecordBatch]:
    generator = np.random.default_rng(3)
    weights = np.arange(1, ROWS + 1, dtype=np.float64) ** -skew
    reach = np.cumsum(weights)
    ranks = np.searchsorted(reach, generator.random(STREAM_ROWS) * reach[-1])
    keys = generator.permutation(ROWS)[ranks]
    table = pa.table(
        {
            "key": keys,
            "amount": np.arange(STREAM_ROWS, dtype=np.int32),
            "number": np.arange(STREAM_ROWS),
        }
    )
    batches: list[pa.RecordBatch] = table.combine_chunks().to_batches(max_chunksize=BATCH_ROWS)
    return batches


def _processor() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or None
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or None
