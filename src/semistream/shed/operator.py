"""A join in front of which rows are shed when they come faster than it can join them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace

import numpy as np
import pyarrow as pa

from semistream.core.budget import MemoryBudget, MemoryPlan, format_bytes, told_in_all
from semistream.core.errors import BudgetError, CallOrderError, SchemaError
from semistream.core.join import SemiStreamJoin, Snapshot, Traits
from semistream.core.stats import JoinStats
from semistream.shed.interval import Interval, copied
from semistream.shed.policy import Numbers, Policy
from semistream.shed.side_output import SideOutput

SHARE = 8
"""Arriving rows and what is known of their keys take this part of the memory."""

COPIES = 4
"""Arriving rows, chosen rows, rows on their way from one to the other, and what is shed."""


class SheddingJoin(SemiStreamJoin):
    """Takes every row of the stream; what the join behind it cannot keep up with is shed.

    `push` never refuses: rows that arrive between two steps compete for the `rows` places of an
    interval, and the policy decides. A `step` is the join's request: what was kept goes to the join
    as far as it has room, and the join does an iteration. While some of it waits for room, the next
    interval goes on. A join that keeps up gets all rows. So call `push` with what has arrived, and
    `step` as often as possible.

    `rows_in` of the counters is what arrived, with `rows_shed` of them shed; arrived rows that have
    not reached the join count as waiting.
    """

    name = "shedding"
    traits = Traits(paper="Polyzotis et al., TKDE 2008, §4", idea="shed rows when there are many")

    def __init__(
        self,
        make: Callable[[int], SemiStreamJoin],
        policy: Policy,
        side_output: SideOutput,
        schema: pa.Schema,
        budget: MemoryBudget,
        *,
        results: Callable[[pa.RecordBatch], Numbers] | None = None,
        rows: int | None = None,
        weights: str | None = None,
    ) -> None:
        """`make` makes the join for so many bytes, for a stream with the column `weights` behind
        the others if that is given. `results` says how many results rows will have; what it knows
        them by is charged to the budget before."""
        self._schema = schema
        self._budget = budget
        self._side_output = side_output
        self._results = results
        self._weights = weights
        self._rows = rows
        self._interval = Interval(policy, schema)
        self._chosen: pa.RecordBatch | None = None
        self._offered = 0
        self._shed = 0
        self._asked = True
        self._closed = False
        self._reserved = budget.limit_bytes // SHARE
        with _in_all(budget.limit_bytes):
            self.join = make(budget.limit_bytes - self._reserved)
        self.output_schema = self.join.output_schema

    # The contract.

    def push(self, batch: pa.RecordBatch) -> int:
        self._check_open()
        if not isinstance(batch, pa.RecordBatch) or not batch.schema.equals(self._schema):
            came = batch.schema.names if isinstance(batch, pa.RecordBatch) else type(batch).__name__
            raise SchemaError(
                f"a batch has the columns {came}, the join was made for {self._schema.names}",
                hint="make a new join for the new schema",
            )
        at = 0
        while at < batch.num_rows:
            most = self._most(batch)
            part = batch.slice(at, max(most, 1))
            known = self._results
            results = np.zeros(part.num_rows) if known is None else known(part)
            for shed in self._interval.offer(part, results, most):
                self._shed += shed.num_rows
                self._side_output.write(shed)
            at += part.num_rows
            self._offered += part.num_rows
            self._charge()
        self._asked = self._asked and not batch.num_rows
        return int(batch.num_rows)

    def step(self) -> pa.RecordBatch | None:
        self._check_open()
        self._asked = True
        self._hand_over()
        return self.join.step()

    def take(self) -> pa.RecordBatch | None:
        self._check_open()
        return self.join.take()

    def finish(self) -> Iterator[pa.RecordBatch]:
        self._check_open()
        while len(self._interval) or self._chosen is not None:
            batch = self.step()
            if batch is not None:
                yield batch
        yield from self.join.finish()

    @property
    def is_due(self) -> bool:
        return not self._asked or self.join.is_due

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._side_output.close()
            self.join.close()

    @property
    def stats(self) -> JoinStats:
        inner = self.join.stats
        ours = self._budget.in_use()
        arriving = len(self._interval) + (self._chosen.num_rows if self._chosen is not None else 0)
        plan = inner.plan
        if plan is not None:
            shares = {**plan.shares, "arriving rows": self._reserved}
            plan = MemoryPlan(self._budget.limit_bytes, shares, plan.reason)
        return replace(
            inner,
            plan=plan,
            rows_in=self._offered,
            rows_shed=self._shed,
            rows_waiting=inner.rows_waiting + arriving,
            bytes_by_component={**inner.bytes_by_component, **ours},
            bytes_in_use=inner.bytes_in_use + self._budget.used_bytes,
            bytes_peak=inner.bytes_peak + self._budget.peak_bytes,
            bytes_limit=self._budget.limit_bytes,
        )

    # What survives a crash.

    def snapshot(self) -> Snapshot:
        """Rows that have arrived are part of it; what was shed is in the side output."""
        self._check_open()
        self._choose()
        return replace(self.join.snapshot(), arrived=self._chosen)

    def restore(self, snapshot: Snapshot) -> None:
        self._check_open()
        if self._offered:
            raise CallOrderError("this join has accepted rows already", hint="use a new join")
        self.join.restore(replace(snapshot, arrived=None))
        self._chosen = snapshot.arrived
        arrived = snapshot.arrived.num_rows if snapshot.arrived is not None else 0
        self._offered = self.join.stats.rows_in + arrived

    # From the stream to the join.

    def _most(self, batch: pa.RecordBatch) -> int:
        """Rows of an interval: w."""
        if self._rows is not None:
            return self._rows
        room = self._reserved - self._budget.in_use().get("key counts", 0)
        row = batch.nbytes / batch.num_rows + 24
        self._rows = int(room / (COPIES * row))
        if self._rows < 1:
            raise BudgetError(
                f"arriving rows have {format_bytes(room)}, and one of them takes "
                f"{format_bytes(COPIES * row)}",
                hint=f'give memory="{int(SHARE * (self._reserved - room + COPIES * row)) + 1}"',
            )
        return self._rows

    def _charge(self) -> None:
        """Account for the rows that are kept; where they are longer than the first, for fewer."""
        size = self._interval.size_bytes
        if self._chosen is not None:
            size += self._chosen.get_total_buffer_size()
        room = self._reserved - self._budget.in_use().get("key counts", 0)
        self._budget.set("arriving rows", min(size, room))
        if size > room and self._rows is not None and len(self._interval) > 1:
            self._rows = max(len(self._interval) // 2, 1)

    def _choose(self) -> None:
        """End the interval: what it kept is the join's next, behind what that has not taken yet."""
        if not len(self._interval):
            return
        kept = self._interval.close()
        rows = kept.rows
        if self._weights is not None:
            rows = rows.append_column(
                pa.field(self._weights, pa.float64(), nullable=False), pa.array(kept.weights)
            )
        if self._chosen is not None:
            rows = pa.concat_batches([self._chosen, rows])
        self._chosen = rows

    def _hand_over(self) -> None:
        """Give the join what was chosen, and end the interval once it has taken all of that."""
        for _ in range(2):
            if self._chosen is None:
                self._choose()
            if self._chosen is None:
                break
            with _in_all(self._budget.limit_bytes):
                accepted = self.join.push(self._chosen)
            if accepted < self._chosen.num_rows:
                # A slice would hold on to the memory of all.
                if accepted:
                    left = np.arange(accepted, self._chosen.num_rows)
                    self._chosen = copied(self._chosen, left)
                break
            self._chosen = None
        self._charge()

    def _check_open(self) -> None:
        if self._closed:
            raise CallOrderError("this join is closed", hint="make a new join")


def _in_all(limit_bytes: int) -> AbstractContextManager[None]:
    """Within it, errors about memory tell what is needed in all, arriving rows included."""
    return told_in_all(
        lambda inner: inner * SHARE // (SHARE - 1) + 1,
        f"which is {format_bytes(limit_bytes)} but for arriving rows",
    )
