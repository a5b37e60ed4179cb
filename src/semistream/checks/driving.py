"""Driving a join by hand, with everything checked that must hold between any two calls."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

from semistream.checks.workspace import Case, Workspace, part
from semistream.core.clock import Clock
from semistream.core.errors import BudgetError
from semistream.core.join import HOWS, SemiStreamJoin
from semistream.core.stats import JoinStats
from semistream.joins.registry import make_join

ROOMY = 8_000_000
"""A budget in which every case fits."""

BATCH_ROWS = 500

FEW_ROWS = 600
"""Stream rows that are joined with the least memory, in which a join accepts a few at a time."""

MOST_IDLE_STEPS = 10_000
"""Steps without any effect after which a join is taken to be stuck."""


class JoinFactory(Protocol):
    """Makes joins of one algorithm; see `named`."""

    @property
    def name(self) -> str:
        """The algorithm's name, for messages."""

    def __call__(
        self,
        master: Any,
        *,
        on: Any,
        schema: pa.Schema,
        how: str = "inner",
        memory: int = ROOMY,
        columns: Sequence[str] | None = None,
        clock: Clock | None = None,
        seed: int = 0,
    ) -> SemiStreamJoin:
        """A fresh join, with the arguments of `make_join`."""


class _Named:
    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        self.name = name
        self._options = options

    def __call__(self, master: Any, **arguments: Any) -> SemiStreamJoin:
        return make_join(self.name, master, **arguments, **self._options)


def named(name: str, **options: Any) -> JoinFactory:
    """The factory of a registered join, with options of its own."""
    return _Named(name, options)


class Run:
    """One join being driven. Each call does what the join's does and then looks at the join.

    Results are collected; `table` has them all.
    """

    def __init__(self, join: SemiStreamJoin) -> None:
        self.join = join
        self.batches: list[pa.RecordBatch] = []
        self.refusals = 0
        self._peak = 0
        self.look()

    def push(self, batch: pa.RecordBatch) -> int:
        """Offer a batch; how many of its rows were accepted."""
        before = self.join.stats.rows_in
        accepted = self.join.push(batch)
        assert 0 <= accepted <= batch.num_rows, f"push accepted {accepted} of {batch.num_rows}"
        assert self.look().rows_in == before + accepted, "push and rows_in differ"
        self.refusals += accepted < batch.num_rows
        return accepted

    def step(self) -> int:
        """One iteration; how many results it gave."""
        return self._keep(self.join.step())

    def take(self) -> int:
        """Take what is ready; how many results it were."""
        before = self.join.stats
        batch = self.join.take()
        count, after = self._keep(batch), self._seen
        assert after.iterations == before.iterations, "take did an iteration"
        assert after.pages_read == before.pages_read, "take read pages"
        assert after.rows_waiting == before.rows_waiting, "take changed what waits"
        return count

    def offer(self, batch: pa.RecordBatch) -> None:
        """Push all rows of a batch, with steps where some are refused."""
        idle = 0
        while batch.num_rows:
            accepted = self.push(batch)
            batch = batch.slice(accepted)
            if batch.num_rows == 0:
                break
            idle = idle + 1 if self.step() == 0 and accepted == 0 else 0
            assert idle < MOST_IDLE_STEPS, f"no row was accepted in {idle} steps"
        self.take()

    def finish(self) -> None:
        """Drain the join."""
        for batch in self.join.finish():
            self._keep(batch)
        stats = self.join.stats
        assert stats.rows_waiting == 0, f"{stats.rows_waiting} rows wait after finish"
        assert self.join.take() is None, "results were left after finish"

    def drained(self, batch: pa.RecordBatch) -> None:
        """Join a batch completely."""
        before = self.join.stats.rows_in
        for result in self.join.drained(batch):
            self._keep(result)
        stats = self.look()
        assert stats.rows_in == before + batch.num_rows, "not all rows of the batch came in"
        assert stats.rows_waiting == 0, f"{stats.rows_waiting} rows wait in a drained join"
        assert self.join.take() is None, "results were left in a drained join"

    def pushed(self, batch: pa.RecordBatch) -> None:
        """Take a batch in; its rows may wait."""
        before = self.join.stats.rows_in
        for result in self.join.pushed(batch):
            self._keep(result)
        assert self.look().rows_in == before + batch.num_rows, "not all rows of the batch came in"
        self.take()

    def drain(self) -> None:
        """Drain the join by steps, which must not take for ever."""
        idle = 0
        while before := self.look().rows_waiting:
            gave = self.step()
            idle = idle + 1 if gave == 0 and self._seen.rows_waiting == before else 0
            assert idle < MOST_IDLE_STEPS, f"{before} rows wait for ever"
        while self.take():
            pass

    def look(self) -> JoinStats:
        """Check what must hold at any moment; the counters."""
        self._seen = stats = self.join.stats
        held = stats.rows_matched + stats.rows_unmatched + stats.rows_waiting + stats.rows_shed
        assert stats.rows_in == held, (
            f"{stats.rows_in} rows came in, but {stats.rows_matched} matched + "
            f"{stats.rows_unmatched} unmatched + {stats.rows_waiting} waiting + "
            f"{stats.rows_shed} shed are {held}"
        )
        assert 0 <= stats.bytes_in_use <= stats.bytes_peak <= stats.bytes_limit, (
            f"{stats.bytes_in_use} bytes in use, peak {stats.bytes_peak}, "
            f"limit {stats.bytes_limit}: {stats.bytes_by_component}"
        )
        assert sum(stats.bytes_by_component.values()) == stats.bytes_in_use
        assert stats.bytes_peak >= self._peak, "the peak fell"
        self._peak = stats.bytes_peak
        return stats

    def table(self) -> pa.Table:
        """All results so far."""
        return pa.Table.from_batches(self.batches, schema=self.join.output_schema)

    def _keep(self, batch: pa.RecordBatch | None) -> int:
        self.look()
        if batch is None:
            return 0
        assert batch.num_rows > 0, "a batch without rows was given as a result"
        assert batch.schema.equals(self.join.output_schema), (
            f"a result has the schema\n{batch.schema}\nnot\n{self.join.output_schema}"
        )
        batch.validate(full=True)
        self.batches.append(batch)
        return int(batch.num_rows)


def cut(table: pa.Table, rows: int = BATCH_ROWS) -> list[pa.RecordBatch]:
    """A table as batches of that many rows (the last has the rest)."""
    whole = table.combine_chunks()
    return [batch for batch in whole.to_batches(max_chunksize=rows) if batch.num_rows]


def open_run(
    make: JoinFactory,
    workspace: Workspace,
    case: Case,
    how: str,
    memory: int = ROOMY,
    **arguments: Any,
) -> Run:
    """A fresh join of a case, ready to be driven."""
    master, schema = workspace.opened(case), case.stream.schema
    join = make(master, on=dict(case.on), schema=schema, how=how, memory=memory, **arguments)
    assert join.stats.bytes_limit == memory, "the join has another limit than it was given"
    return Run(join)


def run_through(run: Run, batches: Iterable[pa.RecordBatch]) -> pa.Table:
    """All results of some batches, in the plainest way; closes the join."""
    with run.join:
        for batch in batches:
            run.offer(batch)
        run.finish()
        table = run.table()
        assert run.join.stats.rows_out == table.num_rows, "rows_out is not what was taken"
    return table


def smallest_memory(
    make: JoinFactory,
    workspace: Workspace,
    case: Case,
    how: str,
    batch_rows: int = BATCH_ROWS,
    **arguments: Any,
) -> int:
    """The least budget that the join takes for a case, as its own errors say it."""
    memory = 1
    first = cut(case.stream, batch_rows)[:1]
    for _ in range(16):
        refusal = _refusal(make, workspace, case, how, memory, first, arguments)
        if refusal is None:
            return memory
        found = re.search(r'memory="(\d+)"', refusal.hint)
        assert found is not None, f"no minimum in the hint of: {refusal}"
        assert int(found[1]) > memory, f"{memory} bytes were given and refused: {refusal}"
        memory = int(found[1])
    raise AssertionError(f"{make.name} asks for more memory each time; last {memory} bytes")


def _refusal(
    make: JoinFactory,
    workspace: Workspace,
    case: Case,
    how: str,
    memory: int,
    batches: Sequence[pa.RecordBatch],
    arguments: Mapping[str, Any],
) -> BudgetError | None:
    try:
        run = open_run(make, workspace, case, how, memory, **arguments)
        with run.join:
            for batch in batches:
                run.push(batch)
    except BudgetError as error:
        return error
    return None


def assert_case(
    make: JoinFactory,
    workspace: Workspace,
    case: Case,
    *,
    hows: Sequence[str] = HOWS,
    batch_rows: int = BATCH_ROWS,
    memories: Sequence[int] | None = None,
    columns: list[str] | None = None,
) -> None:
    """Join a case for each kind of join and compare.

    Without `memories` once with as little as the join takes, for the first rows of the stream, and
    once with much; the latter, unless the workspace is thorough, for two of the four kinds of join:
    with much memory they differ in what is written at the end only.
    """
    for how in hows:
        if memories is None and case.stream.num_rows:
            few = part(case, FEW_ROWS)
            least = smallest_memory(make, workspace, few, how, batch_rows, columns=columns)
            assert_case(
                make,
                workspace,
                few,
                hows=(how,),
                batch_rows=batch_rows,
                memories=(least,),
                columns=columns,
            )
        spared = len(hows) == len(HOWS) and how not in ("left", "semi") and not workspace.thorough
        for memory in memories or (() if spared and case.stream.num_rows else (ROOMY,)):
            what = f"{make.name}, {case.name}, {how}, {memory} bytes"
            run = open_run(make, workspace, case, how, memory, columns=columns)
            try:
                actual = run_through(run, cut(case.stream, batch_rows))
            except Exception as error:
                error.add_note(f"while joining: {what}")
                raise
            workspace.assert_exact(actual, case, how, what, columns)
