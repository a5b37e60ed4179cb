"""Unit costs of this machine, measured in some seconds.

c_IO is measured by reading runs of pages and nothing else. All other unit costs are measured where
they occur, in the joins: each of some short runs took so many seconds and did so much of everything
(both are known), and the unit costs are what explains the seconds best. Timed alone, a probe or an
append would find everything in the processor's caches, and would cost a fraction.

The same thing does not cost the same in every join: one asks for memory ahead of its use, another
cannot. So each join has costs of its own besides, as near to those of all joins as its own runs
allow. The usual joins are timed at once, the others when somebody wants to know.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import tempfile
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import cycle
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import psutil
import pyarrow as pa

from semistream.core.clock import Clock, ProcessorClock, SystemClock
from semistream.core.errors import BudgetError, OptionError, unknown_name
from semistream.core.stats import JoinStats
from semistream.cost import MODELS
from semistream.cost.units import (
    COST_NAMES,
    SEEN,
    Costs,
    Loop,
    ReadCost,
    UnitCosts,
    counted,
    reading_s,
)
from semistream.cost.workload import Workload
from semistream.joins.operator import Operator
from semistream.joins.registry import make_join
from semistream.kernels.timing import read_only_runs
from semistream.store.build import build_master
from semistream.store.file import IO_MODES, FileMaster, open_master

ROWS = 1_000_000
"""Rows of the master that joins are timed on: several times what most processors' last cache holds,
or else reads of what is cached there would look cheap."""

PAYLOAD_BYTES = 88
STREAM_ROWS = 2_000_000
BATCH_ROWS = 65_536
SIZES = (1_500_000, 14_000_000)
"""Memories at which joins are timed: within the processor's nearest caches, and beyond them."""

SKEWS = (0.0, 0.9)
"""Streams on which every join is timed: with hardly any hits, and with many."""

SLICES = 5
READ_SLICES = 3
RUN_S = 0.08
LONGEST_LOOP_S = 1.5
LONGEST_WARM_S, LEAST_WARM_ROWS = 2.0, 10_000
STEADY, NO_HITS = 0.15, 0.01
"""A cache is filled until the share of hits is near to what is expected, or to what it was before:
so much of it apart, and a little."""

READ_LENGTHS = (1, 2, 4, 8, 16, 32)
READ_BUFFER_PAGES = 1024
LOOKED_PAGES = 8192
PRIOR_WEIGHT = 0.02
"""How much of a run's weight the guess of a unit cost has that runs cannot tell from others."""

OWN_WEIGHT = 0.2
"""The same for the costs of one join, which has few runs: there the guess is that of all joins."""

LEAST_OF_PRIOR = 0.3
"""A guess is not below this part of what is usual."""

MOST_FACTOR = 4.0
"""All costs together are not further off what is usual: more than that is one of them."""

KNOWN_WEIGHT = 100.0

LEAST_BUSY = 0.05
"""A join works for at least this part of its time, whatever its reads seem to take."""

LEAST_HELD_BYTES, MOST_HELD_BYTES = 4_000_000, 32_000_000

LINE_BYTES = 64

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

_Floats = npt.NDArray[np.float64]
_Measured = TypeVar("_Measured")


@dataclass(frozen=True)
class Run:
    """What to run: a join with some options on a stream with some skew."""

    join: str
    skew: float = 0.0
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Timed:
    """A short run of a join: what it did, and how long it took."""

    run: Run
    size: int
    loop: Loop
    seconds: float

    def seconds_per_row(self) -> float:
        """What a stream row took."""
        return self.seconds / self.loop.rows


USUAL_JOINS = (
    "memoryjoin", "inlj", "meshjoin", "hybridjoin", "cachejoin", "sscj", "ssij", "sweepjoin",
)  # fmt: skip
"""Joins whose runs tell the costs of all joins: everything that joins do occurs in one of them."""

OTHER_SIZES = {"chunk": 65_536, "partition_pages": 8}
"""Reads of other sizes than usual, by the option that sets them. Joins are timed with these too, or
what each of their turns costs could not be told from what rows and pages cost."""


@dataclass(frozen=True)
class Calibration:
    """Unit costs with the host that they are of, and how well they explain the runs."""

    costs: UnitCosts
    host: Mapping[str, Any]
    date: str
    errors: Mapping[str, float] = field(default_factory=dict)

    def lacks(self, joins: Collection[str]) -> list[str]:
        """Those of some joins whose own costs were not measured."""
        for unknown in set(joins) - set(MODELS):
            raise unknown_name("join", unknown, MODELS)
        return [join for join in joins if join not in self.costs.joins]

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
                hint="`semistream tune --calibration` measures this machine and writes one",
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


Tell = Callable[[str], None]
"""Hears of what is measured."""


def calibrated(
    path: Path | None = None,
    *,
    joins: Collection[str] = USUAL_JOINS,
    anew: bool = False,
    folder: Path | None = None,
    tell: Tell = lambda line: None,
) -> Calibration:
    """The calibration that is kept at `path`, or one made `anew`.

    What it lacks is measured, on the disk of `folder`, and kept; but one of another host stays as
    it is.
    """
    path = path or default_path()
    kept = Calibration.load(path) if path.exists() and not anew else None
    if kept is not None and (not kept.lacks(joins) or kept.host != host()):
        return kept
    tell("measuring this machine, once" if kept is None else "measuring more joins, once")
    with join_timer(folder, read=kept.costs.read if kept else None, tell=tell) as timer:
        made = timer.with_joins(kept or timer.calibration(tell=tell), joins, tell=tell)
    made.save(path)
    tell(f"kept in {path}")
    return made


@contextmanager
def join_timer(
    folder: Path | None = None,
    *,
    read: Mapping[str, ReadCost] | None = None,
    tell: Tell = lambda line: None,
) -> Iterator[JoinTimer]:
    """A master to time joins on, in a folder that is removed afterwards. What reads cost is
    measured too, unless it is known."""
    with tempfile.TemporaryDirectory(dir=folder, prefix="semistream-calibration-") as made:
        path = Path(made) / "calibration.master"
        build_master(path, _master_rows(), "key")
        with open_master(path) as master:
            _check_pages(master)
            yield JoinTimer(master, read or _measured_reads(path, tell))


def _check_pages(master: FileMaster) -> None:
    """Read all pages, so that no join that is timed has to check them: that is done once."""
    reader = master.reader(READ_BUFFER_PAGES)
    try:
        runs = np.stack([np.arange(master.pages), np.ones(master.pages, np.int64)], axis=1)
        if not read_only_runs(reader.ring.kernel, runs):
            raise reader.error()
    finally:
        reader.close()


def _measured_reads(path: Path, tell: Tell) -> dict[str, ReadCost]:
    read = {}
    for way in (*IO_MODES, SEEN):
        with open_master(path, io="direct" if way == "direct" else "buffered") as master:
            read[way] = measure_reads(master, SystemClock(), seen=way == SEEN)
        tell(f"{way} pages: {read[way].request_s * 1e6:.1f} µs a request, "
             f"{read[way].page_s * 1e6:.2f} µs a page")  # fmt: skip
    return read


class JoinTimer:
    """Times short runs of joins.

    By the processor's time, which other programs disturb least: what joins read here is in the
    operating system's cache.
    """

    def __init__(self, master: FileMaster, read: Mapping[str, ReadCost]) -> None:
        self._master = master
        self._read = dict(read)
        self._clock = ProcessorClock()
        self._streams = {skew: _stream(master, skew) for skew in SKEWS}
        self._loaded: set[str] = set()

    def own_times(self, join: str, size: int) -> list[Timed]:
        """Runs of a join that tell its own costs: as it usually is, and with other reads."""
        runs = [Run(join, skew) for skew in SKEWS]
        tunes = MODELS[join].tunes
        if tunes in OTHER_SIZES:
            runs.append(Run(join, SKEWS[0], {tunes: OTHER_SIZES[tunes]}))
        return self._times(runs, size)

    def _times(self, runs: Sequence[Run], size: int) -> list[Timed]:
        """Runs of joins with this memory; those are left out that need more."""
        done = []
        for run in runs:
            with suppress(BudgetError):
                if run.join not in self._loaded:  # what it calls is loaded or compiled first
                    self._time(run, size, 0.0)
                    self._loaded.add(run.join)
                done.append(self._time(run, size, RUN_S))
        return done

    def _time(self, run: Run, size: int, seconds: float) -> Timed:
        first = UnitCosts(((1, PRIOR),), self._read)
        stream = self._streams[run.skew]
        return _time(self._master, run, size, stream, self._clock, seconds, first)

    def calibration(self, *, tell: Tell = lambda line: None) -> Calibration:
        """The unit costs of all joins, and of each of the usual ones."""
        fitted: list[tuple[int, Costs]] = []
        own: dict[str, list[Timed]] = {join: [] for join in USUAL_JOINS}
        errors: dict[str, float] = {}
        for size in SIZES:
            tell(f"joins with {size:,} bytes")
            timed: list[Timed] = []
            for join, runs in own.items():
                found = self.own_times(join, size)
                runs += found
                timed += found
            # A call costs the same at every size, and is seen best where there are most.
            known = {"call": fitted[0][1].call} if fitted else {}
            costs, off = fit(timed, self._read, known)
            fitted.append((size, Costs(*_usual(costs).tolist())))
            errors[str(size)] = off
            tell(f"joins with {size:,} bytes: all costs alike explain them to {off:.0%}")
        today = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
        all_costs = UnitCosts(tuple(fitted), self._read)
        for join, runs in own.items():
            all_costs = with_own(all_costs, join, runs)
        return Calibration(all_costs, host(), today, errors)

    def with_joins(
        self, calibration: Calibration, joins: Collection[str], *, tell: Tell = lambda line: None
    ) -> Calibration:
        """A calibration with the own costs of these joins, if it lacks them."""
        costs = calibration.costs
        for join in calibration.lacks(joins):
            tell(f"costs of {join}")
            runs = [one for size, _ in costs.sizes for one in self.own_times(join, size)]
            costs = with_own(costs, join, runs)
        return replace(calibration, costs=costs)


def with_own(costs: UnitCosts, join: str, runs: Sequence[Timed]) -> UnitCosts:
    """Costs in which those of one join explain these runs of it, if there are any.

    Each is that of all joins times a factor, the same at every size of memory: what a page and what
    a row costs is told apart best by runs that differ in size. One more factor for each size, for
    all of its costs, makes up for the rest.
    """
    usual = dict(costs.sizes)
    runs = [one for one in runs if one.size in usual]
    if not runs:
        return costs
    prior = np.array([_usual(usual[one.size]) for one in runs])
    counts, target = _counts(runs, costs.read)
    scale = _scale(counts * prior, target, OWN_WEIGHT)
    left = target / (counts * prior @ scale)
    sized = []
    for size, common in costs.sizes:
        here = left[[one.size == size for one in runs]]
        if len(here):
            own = scale * float(np.exp(np.log(here).mean())) * _usual(common)
            sized.append((size, Costs(*own.tolist())))
    return replace(costs, joins={**costs.joins, join: tuple(sized)})


# Reads.


def measure_reads(master: FileMaster, clock: Clock, *, seen: bool = False) -> ReadCost:
    """c_IO(b) = request + b · page, over runs of several lengths at random places; those that are
    `seen` follow each other, since only dense pages are."""
    generator = np.random.default_rng(1)
    lengths, seconds = [], []
    for length in READ_LENGTHS:
        length = min(length, max(master.pages // 2, 1))
        count = min(LOOKED_PAGES, master.pages) // length if seen else max(1024 // length, 32)
        best = np.inf
        for _ in range(READ_SLICES):
            # Others every time: what was read a moment ago is in the processor's caches.
            starts = generator.integers(0, max(master.pages - length, 1), count)
            if seen:
                first = generator.integers(0, master.pages - count * length + 1)
                starts = first + length * np.arange(count)
            runs = np.stack([starts, np.full(count, length)], axis=1).astype(np.int64)
            reader = master.reader(READ_BUFFER_PAGES, windows=seen, check=False)
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
    stream: _Stream,
    clock: Clock,
    seconds: float,
    costs: UnitCosts,
) -> Timed:
    """One of the best slices of a warm join."""
    size = memory
    if run.join == "memoryjoin":
        memory += 2 * master.data_bytes
    model = MODELS[run.join]
    plan = model.plan(stream.workload, memory, costs, **run.options)
    said, period = model.loop(stream.workload, plan, costs), model.period(plan)
    operator = make_join(
        run.join,
        master,
        on="key",
        schema=stream.batches[0].schema,
        memory=memory,
        clock=clock,
        seed=1,
        **run.options,
    )
    with operator:
        calls = _calls(operator, stream.batches)
        if not seconds:
            next(calls)
            return _slice(operator, run, size, said, calls, clock, 0.0, 1)
        _warm_up(operator, calls, clock, hits_expected=said.hit_share)
        _to_loop_end(operator, calls, clock)
        begin = clock.now_ns()
        slices: list[Timed] = []
        while len(slices) < SLICES and (clock.now_ns() - begin) / 1e9 < 3 * seconds:
            each_s = seconds / SLICES
            slices.append(_slice(operator, run, size, said, calls, clock, each_s, period))
    return one_of_best(slices, Timed.seconds_per_row)


def one_of_best(
    runs: Sequence[_Measured], seconds_per_row: Callable[[_Measured], float]
) -> _Measured:
    """Of runs of the same: what disturbs one makes it slower, never faster; the very best may have
    had luck."""
    return sorted(runs, key=seconds_per_row)[len(runs) // 4]


def _warm_up(operator: Operator, calls: _Calls, clock: Clock, *, hits_expected: float) -> None:
    """Feed until the memory is full and was so for as many rows as wait, and there are about as
    many hits as expected or as a moment ago, if time allows. A join in which no row
    waits is warm at once."""
    begin, start, hits = clock.now_ns(), None, -1.0
    while True:
        refused, _ = next(calls)
        now = operator.stats
        if not now.rows_waiting or (clock.now_ns() - begin) / 1e9 >= LONGEST_WARM_S:
            return
        if start is None:
            start = now if refused else None
            continue
        did = now.since(start)
        if did.rows_in - did.hits >= max(now.rows_waiting, LEAST_WARM_ROWS):
            share = did.hit_share
            if min(abs(share - hits_expected), abs(share - hits)) <= STEADY * share + NO_HITS:
                return
            start, hits = now, share


_Calls = Iterator[tuple[bool, pa.RecordBatch | None]]
"""Whether rows were refused in a round of calls, and its results."""


def _calls(operator: Operator, stream: Sequence[pa.RecordBatch]) -> _Calls:
    """Offers a stream for ever; each turn is a push and, if rows were refused, a step."""
    for batch in cycle(stream):
        rest = batch
        while rest.num_rows:
            accepted = operator.push(rest)
            rest = rest.slice(accepted)
            refused = rest.num_rows > 0
            yield refused, operator.step() if refused else operator.take()


def _to_loop_end(operator: Operator, calls: _Calls, clock: Clock) -> None:
    begin, loops = clock.now_ns(), operator.loops
    while operator.loops == loops and (clock.now_ns() - begin) / 1e9 < LONGEST_LOOP_S:
        next(calls)


def _slice(
    operator: Operator,
    run: Run,
    size: int,
    said: Loop,
    calls: _Calls,
    clock: Clock,
    seconds: float,
    period: int,
) -> Timed:
    before, last_loop = operator.stats, operator.loops + period
    held, held_bytes, took_s, begin = [], 0, 0.0, clock.now_ns()
    most_held = bytes_to_hold(operator.stats.bytes_limit)
    while True:
        now = operator.loops
        _, results = next(calls)
        if results is not None:
            held.append(results)
            held_bytes += results.nbytes
        spent_s = (clock.now_ns() - begin) / 1e9
        # Whole loops: a join may do one thing at first and another later in each of them.
        loop_ended = operator.loops > now and operator.loops >= last_loop
        long_s = seconds if loop_ended else LONGEST_LOOP_S
        done = took_s + spent_s >= long_s and operator.stats.rows_in > before.rows_in
        if done or held_bytes >= most_held:
            took_s += spent_s
            _look_at(held)
            held, held_bytes, begin = [], 0, clock.now_ns()
        if done:
            break
    after = operator.stats
    did = after.since(before)
    rows = max(float(did.rows_in - after.rows_waiting + before.rows_waiting), 1.0)
    return Timed(run, size, seen(said, did, rows), took_s)


def bytes_to_hold(memory_bytes: int) -> int:
    """Results that are kept before somebody looks at them: half of a join's memory, within bounds.

    With few there would be many pauses in which reads go on. Very many are memory that is touched
    for the first time, which no join is to be charged for.
    """
    return min(max(memory_bytes // 2, LEAST_HELD_BYTES), MOST_HELD_BYTES)


def _look_at(results: Sequence[pa.RecordBatch]) -> None:
    """What whoever takes results does, and no join is charged for.

    Results that nobody looks at would be written again and again to the same few places, which
    stay in the processor's caches; and whoever looks at them needs these caches himself.
    """
    for batch in results:
        for column in batch.columns:
            for buffer in column.buffers():
                if buffer is not None and buffer.size:
                    np.frombuffer(buffer, np.uint8)[::LINE_BYTES].max()


def seen(said: Loop, did: JoinStats, rows: float) -> Loop:
    """What a model says of a loop, with what is known of the `rows` that were answered in a run.

    Hits, results, pages and requests are what they were; all else follows them as in the model.
    """
    hits = min(float(did.hits), rows) if said.cache_looked_up else 0.0
    waits = (rows - hits) if said.waits else 0.0
    by_wait = waits / said.waits if said.waits else rows / said.rows
    by_row, by_page = rows / said.rows, did.pages_read / said.pages if said.pages else 0.0
    return Loop(
        rows=rows,
        hits=hits,
        waits=waits,
        held=said.held * by_row,
        behind=said.behind * by_wait,
        far=said.far * by_wait,
        found=said.found * by_row,
        results=float(did.rows_out),
        looked_up=said.looked_up * by_wait,
        cache_looked_up=said.cache_looked_up * by_row,
        probes=said.probes * by_page,
        offered=said.offered * by_wait,
        watched=said.watched * by_page,
        pages=float(did.pages_read),
        seen=said.seen * by_page,
        requests=float(did.requests),
        calls=said.calls * by_row,
    )


def fit(
    timed: Sequence[Timed],
    read: Mapping[str, ReadCost],
    known: Mapping[str, float] | None = None,
) -> tuple[Costs, float]:
    """The unit costs that explain the runs best, none below zero; and the median error left.

    `known` ones stay what they are.
    """
    counts, target = _counts(timed, read)
    prior = _usual(PRIOR)
    scale = _scale(counts * prior, target, PRIOR_WEIGHT, known=known, prior=prior)
    off = np.abs(counts * prior @ scale - target)
    return Costs(*(scale * prior).tolist()), float(np.median(off))


def _counts(timed: Sequence[Timed], read: Mapping[str, ReadCost]) -> tuple[_Floats, _Floats]:
    """How often each unit cost occurs in a second of each run, and the share of that second which
    they have to explain: all but the reads."""
    rows, busy = [], []
    for one in timed:
        counts = counted(one.loop, by_index=MODELS[one.run.join].by_index)
        rows.append([counts[name] / one.seconds for name in COST_NAMES])
        busy.append(1 - reading_s(one.loop, read, "buffered") / one.seconds)
    return np.array(rows), np.maximum(np.array(busy), LEAST_BUSY)


def _usual(costs: Costs) -> _Floats:
    """Costs as an array. None is below a part of what is usual: runs may have found nothing for a
    cost that they cannot tell from others."""
    least = np.array([getattr(PRIOR, name) for name in COST_NAMES])
    return np.maximum([getattr(costs, name) for name in COST_NAMES], LEAST_OF_PRIOR * least)


def _scale(
    matrix: _Floats,
    target: _Floats,
    weight: float,
    *,
    known: Mapping[str, float] | None = None,
    prior: _Floats | None = None,
) -> _Floats:
    """Factors, none below zero, by which the columns of the matrix add up to the target.

    Relative errors count. All are one and the same at first; then each moves as the runs want it.
    Where runs cannot tell two apart, they stay near that, which has `weight` of a run's.
    """
    factor = float(np.median(target / matrix.sum(axis=1)))
    factor = min(max(factor, 1 / MOST_FACTOR), MOST_FACTOR)
    matrix = matrix * factor
    weights, expected = np.full(matrix.shape[1], weight), np.ones(matrix.shape[1])
    for name, value in (known or {}).items():
        at = COST_NAMES.index(name)
        assert prior is not None
        weights[at], expected[at] = KNOWN_WEIGHT, value / (factor * prior[at])
    found = nonnegative(
        np.concatenate([matrix, np.diag(weights)]), np.concatenate([target, weights * expected])
    )
    return found * factor


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


@dataclass(frozen=True)
class _Stream:
    """Rows that are played in a loop, and what models must know of them."""

    batches: Sequence[pa.RecordBatch]
    workload: Workload


def _stream(master: FileMaster, skew: float) -> _Stream:
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
    return _Stream(
        table.combine_chunks().to_batches(max_chunksize=BATCH_ROWS),
        Workload.of(master, table.schema, "key", skew=skew),
    )


def _processor() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or None
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or None
