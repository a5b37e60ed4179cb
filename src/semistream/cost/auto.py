"""`algorithm="auto"`: the join that the cost models choose, and another when the stream changes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.core.budget import MemoryBudget, MemoryPlan, format_bytes
from semistream.core.errors import BudgetError, SemiStreamError
from semistream.core.join import Snapshot, Traits
from semistream.core.stats import JoinStats
from semistream.cost import MODELS
from semistream.cost.calibrate import Calibration, default_path
from semistream.cost.frequencies import Frequencies
from semistream.cost.units import UnitCosts
from semistream.cost.workload import Workload, keys_of
from semistream.joins import registry
from semistream.joins.deadlines import Wait
from semistream.joins.operator import Operator
from semistream.store.file import FileMaster

CANDIDATES = ("sweepjoin", "hybridjoin", "cachejoin", "sscj", "ssij")
"""Joins that are best somewhere; the first one where no other is clearly better."""

SAMPLE_ROWS = 32_768
LOOK_ROWS = 1 << 20
"""Rows between two looks at the stream."""

VOTES = 3
"""Looks in a row that must agree before a join gives way to another."""

GAIN = 1.25
"""A join gives way to one that is predicted to be faster by this factor, at first and later:
predictions may be off by as much."""

MOVED = 0.05
"""The models are asked again when the share of different keys in a sample has moved by this much:
what they say depends on the stream through that alone, and asking takes a second or so."""


@dataclass(frozen=True)
class Choice:
    """A join and why; `rows_per_s` is what the models predict of it (0: they were not asked)."""

    join: str
    reason: str
    rows_per_s: float = 0.0


Chooser = Callable[[Workload, int, str | None], Choice]
"""From a workload, a memory and the join at work (None at first) to the one that should be."""


@cache
def known_costs() -> UnitCosts | None:
    """The unit costs that were measured on this host; None where none were."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return Calibration.load(default_path()).costs
    except (SemiStreamError, OSError):
        return None


def fits(workload: Workload, memory_bytes: int) -> bool:
    """Whether the whole master fits the memory, with what a join in memory needs besides."""
    try:
        MODELS["memoryjoin"].plan(workload, memory_bytes)
    except BudgetError:
        return False
    return True


def choose(workload: Workload, memory_bytes: int, now: str | None = None) -> Choice:
    """The join for a workload: in memory where the master fits, else what the models favour.

    Without unit costs of this host models would compare guesses; it is the default then.
    """
    size = format_bytes(workload.pages * workload.page_bytes)
    if fits(workload, memory_bytes):
        return Choice("memoryjoin", f"the master ({size}) fits {format_bytes(memory_bytes)}")
    costs = known_costs()
    share = memory_bytes / max(workload.pages * workload.page_bytes, 1)
    if costs is None:
        return Choice(
            now or registry.DEFAULT,
            f"the default, with memory for {share:.1%} of the master ({size}); what joins cost on "
            "this machine was never measured (`semistream tune` does that)",
        )
    rates: dict[str, float] = {}
    for name in CANDIDATES:
        model = MODELS[name]
        try:
            plan = model.plan(workload, memory_bytes, costs)
            rates[name] = model.predict(workload, plan, costs).rows_per_s
        except BudgetError:
            continue
    if not rates:
        return Choice(now or CANDIDATES[0], "no model fits so little memory")
    base = now if now in rates else next(iter(rates))
    best = max(rates, key=lambda name: rates[name])
    if rates[best] < rates[base] * GAIN:
        best = base
    others = ", ".join(
        f"{name} {rate:,.0f}" for name, rate in sorted(rates.items(), key=lambda one: -one[1])
    )
    return Choice(
        best,
        f"{rates[best]:,.0f} rows/s predicted with memory for {share:.1%} of the master "
        f"({size}); predicted rows/s: {others}",
        rates[best],
    )


class AutoJoin(Operator):
    """The join that the cost models favour for master, memory and stream.

    A master that fits the memory is joined in memory (`memoryjoin`). Else the first rows show how
    skewed the stream is, and the models say which of `CANDIDATES` answers most rows per second;
    `stats.plan.reason` says why. Every million rows it looks whether the stream has changed. When
    several looks in a row favour another join clearly, no more rows are taken in until the one at
    work has answered all that wait (`push` refuses, `step` goes on), and the other takes over, with
    all of the memory. `stats.algorithm` is the join at work; counters go on. A snapshot is that of
    the join at work.
    """

    name = "auto"
    traits = Traits(
        paper="this project", idea="the join that the cost models favour", skew="as the join has it"
    )

    def __init__(
        self,
        *args: Any,
        chooser: Chooser = choose,
        max_wait: Wait | None = None,
        **options: Any,
    ) -> None:
        self.chooser = chooser
        self._max_wait = max_wait
        self._inner: Operator | None = None
        self._before: list[JoinStats] = []
        self._next: Choice | None = None
        self._votes = 0
        self._seen: list[npt.NDArray[np.int64]] = []
        self._seen_rows = 0
        self._since_look = LOOK_ROWS
        self._frequencies: Frequencies | None = None
        self._different = 0.0
        super().__init__(*args, **options)

    # What the base class asks of an algorithm; the join at work does it.

    def divide(self, blob_bytes: float) -> MemoryPlan:
        """Before the first row: check that the default can do with the memory, and choose."""
        self._make(registry.DEFAULT).close()
        choice = self._choose(self._even())
        self._start(choice)
        assert self._inner is not None
        return self._inner.plan

    def allocate(self, blob_bytes: float) -> None:
        raise AssertionError("the join at work allocates")

    def accept(self, batch: pa.RecordBatch) -> int:
        raise AssertionError("the join at work accepts rows")

    def work(self) -> None:
        raise AssertionError("the join at work works")

    @property
    def rows_waiting(self) -> int:
        return 0 if self._inner is None else self._inner.rows_waiting

    @property
    def pending(self) -> int:
        return 0 if self._inner is None else self._inner.pending

    @property
    def output_room(self) -> tuple[int, int]:
        return (0, 0) if self._inner is None else self._inner.output_room

    @property
    def cached_rows(self) -> int:
        return 0 if self._inner is None else self._inner.cached_rows

    @property
    def loops(self) -> int:
        return 0 if self._inner is None else self._inner.loops

    @property
    def at_work(self) -> Operator:
        """The join that works now."""
        assert self._inner is not None
        return self._inner

    # The contract.

    def prepare(self, batch: pa.RecordBatch, blob_bytes: int | None = None) -> None:
        with suppress(BudgetError):
            # `push` goes over to another join then, or tells.
            self.at_work.prepare(batch, blob_bytes)

    def push(self, batch: pa.RecordBatch) -> int:
        self._check_open()
        if isinstance(batch, pa.RecordBatch) and batch.num_rows:
            self._look(batch)
        if self._next is not None and not self._go_over():
            return 0
        try:
            accepted = self.at_work.push(batch)
        except BudgetError as error:
            self._give_way(error)
            accepted = self.at_work.push(batch)
        self._since_look += accepted
        return accepted

    def step(self) -> pa.RecordBatch | None:
        self._check_open()
        return self.at_work.step()

    def take(self) -> pa.RecordBatch | None:
        self._check_open()
        return self.at_work.take()

    def finish(self) -> Iterator[pa.RecordBatch]:
        self._check_open()
        yield from self.at_work.finish()

    def drains(self, rows: int) -> bool:
        return self.at_work.drains(rows)

    def drained(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        self._check_open()
        if isinstance(batch, pa.RecordBatch) and batch.num_rows:
            self._look(batch)
        yield from self.at_work.finish()
        if self._next is not None:
            self._go_over()
        try:
            if isinstance(batch, pa.RecordBatch) and batch.num_rows:
                self.at_work.prepare(batch)
        except BudgetError as error:
            self._give_way(error)
        yield from self.at_work.drained(batch)
        self._since_look += batch.num_rows

    def peek(self) -> pa.RecordBatch | None:
        return self.at_work.peek()

    def snapshot(self) -> Snapshot:
        self._check_open()
        return self.at_work.snapshot()

    def restore(self, snapshot: Snapshot) -> None:
        self._check_open()
        if snapshot.algorithm in registry.JOINS and self.at_work.stats.rows_in == 0:
            self._start(Choice(snapshot.algorithm, "goes on from a snapshot"))
            self._since_look = 0
        self.at_work.restore(snapshot)

    @property
    def is_due(self) -> bool:
        return self.at_work.is_due

    def move_to(self, master: FileMaster) -> None:
        self._check_open()
        try:
            self.at_work.move_to(master)
            self.master = master
        except BudgetError:
            # The version is too large for the join at work, which another one may not mind.
            self.master = master
            self._next = self._choose(self._frequencies or self._even())
            if self._next.join == self.at_work.name or not self._go_over():
                raise

    def close(self) -> None:
        self._closed = True
        if self._inner is not None:
            self._inner.close()

    @property
    def stats(self) -> JoinStats:
        now = self.at_work.stats
        plan = now.plan
        assert plan is not None
        if self._before:
            peak = max(one.bytes_peak for one in (*self._before, now))
            total = JoinStats.total([*self._before, now]).with_holdings_of(now)
            now = replace(total, bytes_peak=peak, algorithm=now.algorithm)
        return replace(
            now,
            plan=replace(plan, reason=self._choice.reason),
            predicted_rows_s=self._choice.rows_per_s,
        )

    # Choosing.

    def _even(self) -> Frequencies:
        """What is assumed of a stream of which nothing was seen."""
        return Frequencies.zipf(max(keys_of(self.master), 1), 0.0)

    def _choose(self, frequencies: Frequencies) -> Choice:
        now = self._inner.name if self._inner is not None and self._frequencies else None
        workload = Workload.bound(
            self.master, self.binding, frequencies=frequencies, blob_bytes=self._blob_bytes
        )
        return self.chooser(workload, self.budget.limit_bytes, now)

    def _look(self, batch: pa.RecordBatch) -> None:
        """Look at the stream's keys from time to time, at first at once."""
        if self._since_look < LOOK_ROWS or self.at_work.name == "memoryjoin":
            return
        part = batch.slice(0, SAMPLE_ROWS - self._seen_rows)
        keys = self.binding.keys(part)[0]
        self._seen.append(keys.key64[keys.valid != 0])
        self._seen_rows += part.num_rows
        first = self._frequencies is None
        if self._seen_rows < SAMPLE_ROWS and not first:
            return
        sample = np.concatenate(self._seen)
        self._seen, self._seen_rows, self._since_look = [], 0, 0
        different = len(np.unique(sample)) / max(len(sample), 1)
        if not (first or self._votes) and abs(different - self._different) < MOVED:
            return
        self._different = different
        frequencies = Frequencies.seen(sample, max(keys_of(self.master), 1))
        choice = self._choose(frequencies)
        self._frequencies = frequencies
        if choice.join == self.at_work.name:
            self._choice, self._votes = choice, 0
            return
        self._votes += 1
        if first or self._votes >= VOTES:
            self._next, self._votes = choice, 0

    def _go_over(self) -> bool:
        """Let the chosen join take over, if nothing waits in the one at work; else False."""
        assert self._next is not None
        if self.at_work.rows_waiting or self.at_work.pending:
            return False
        before = self.at_work.stats
        if before.rows_in:
            self._before.append(replace(before, cached_rows=0, bytes_in_use=0, bytes_limit=0))
            self._next = replace(
                self._next, reason=f"instead of {before.algorithm}: {self._next.reason}"
            )
        self._start(self._next)
        self._next = None
        return True

    def _give_way(self, error: BudgetError) -> None:
        """After an error about the memory: let the default begin, unless there is no help.

        Long byte strings, seen now for the first time, may leave too little for the rest.
        """
        refused = self.at_work.name
        if refused == registry.DEFAULT or self.at_work.stats.rows_in:
            raise error
        self._start(Choice(registry.DEFAULT, f"{refused} does not fit the memory"))

    def _start(self, choice: Choice) -> None:
        """Make the join; where it does not fit the memory after all, the default."""
        try:
            made = self._make(choice.join)
        except BudgetError:
            if choice.join == registry.DEFAULT:
                raise
            choice = Choice(registry.DEFAULT, f"{choice.join} does not fit the memory")
            made = self._make(choice.join)
        if self._inner is not None:
            self._inner.close()
        self._inner, self._choice = made, choice

    def _make(self, join: str) -> Operator:
        kind = registry.JOINS[join]
        budget = MemoryBudget(self.budget.limit_bytes, owner=kind.name)
        return kind(
            self.master,
            self.binding,
            budget,
            clock=self.clock,
            seed=self.seed,
            max_wait=self._max_wait,
            companion=self.companion,
        )


registry.use_for_auto(AutoJoin)
