"""Enrichment with a rule for rows that the master does not know.

The rules are `null` (kept, with nulls for the master's columns), `drop`, `dead` (handed to the dead
letters with a reason) and `retry`: the row is held until the master has its key, or a time is over
and it is a dead letter. Held rows do not hold others up, and cost nothing while the master does not
change: when a new version comes, only those are looked up again whose key it touched.

Nothing is lost: rows in = matched + unmatched + dead + waiting, at any moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from semistream.core.budget import format_bytes, parse_bytes, type_of_size
from semistream.core.clock import Clock, SystemClock
from semistream.core.durations import parse_milliseconds
from semistream.core.errors import OptionError
from semistream.joins.api import StreamLike, batches_of, run
from semistream.joins.binding import On
from semistream.joins.registry import make_join
from semistream.store.file import FileMaster
from semistream.store.sql import Table, open_any

MISSING = ("null", "drop", "dead", "retry")
"""What becomes of rows without a partner."""

REASON = "reason"
"""The last column of dead letters; those before are the stream's."""

NULL_KEY = "the key is null"

HELD_PART = 4
"""Rows that are retried may take a quarter of the memory."""

_MARK = "\0matched"

type_of_dead_letters = Callable[[pa.RecordBatch], None]


@dataclass
class Counts:
    """Where rows are: `rows_in == matched + unmatched + dead + waiting`.

    `unmatched` were kept with nulls or dropped, as the rule says; `released` of the matched ones
    had been held before.
    """

    rows_in: int = 0
    matched: int = 0
    unmatched: int = 0
    dead: int = 0
    waiting: int = 0
    released: int = 0
    rows_out: int = 0
    reasons: dict[str, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """A plain record for JSON."""
        return asdict(self)


class Enricher:
    """One master and one rule: `push` rows, `tick` when time passed, `finish` at the end.

    Every row sees one version of the master, the one that is current when its batch is pushed, or
    when it is retried. Dead letters are handed to `dead_letters`, in the stream's columns and one
    for the reason.
    """

    def __init__(
        self,
        schema: pa.Schema,
        master: str | Path | FileMaster | Table,
        on: On,
        *,
        missing: str = "null",
        retry_for: str | None = None,
        dead_letters: type_of_dead_letters | None = None,
        columns: Sequence[str] | None = None,
        algorithm: str = "auto",
        memory: type_of_size = "64MB",
        follow: bool = True,
        clock: Clock | None = None,
        **options: Any,
    ) -> None:
        check_rule(missing, retry_for)
        self.schema = schema
        self.missing = missing
        self.counts = Counts()
        self._follow = follow
        self._clock = clock or SystemClock()
        self._dead = _forget if dead_letters is None else dead_letters
        self._retry_for = retry_for
        self._patience_ns = 0
        if retry_for is not None:
            self._patience_ns = parse_milliseconds(retry_for, what="retry_for") * 10**6
        opened = master if isinstance(master, FileMaster) else open_any(master)
        limit = parse_bytes(memory, of=opened.data_bytes)
        self._most_held_bytes = limit // HELD_PART if missing == "retry" else 0
        self._marks = missing != "null"
        self.operator = make_join(
            algorithm,
            opened,
            on=on,
            schema=schema,
            how="left",
            memory=limit - self._most_held_bytes,
            columns=columns,
            mark=_MARK if self._marks else None,
            clock=self._clock,
            **options,
        )
        names = [name for name in self.operator.output_schema.names if name != _MARK]
        self._shown = names
        self.output_schema = pa.schema([self.operator.output_schema.field(n) for n in names])
        self._name = opened.path.name
        self._held = _Held(schema)

    def push(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The results of a batch, and those of held rows that the master knows by now."""
        yield from self.tick()
        self.counts.rows_in += batch.num_rows
        batch = self._with_key(batch)
        for result in run(self.operator, [batch]):
            yield from self._sorted(result)
        self._count()

    def tick(self) -> Iterator[pa.RecordBatch]:
        """Look after held rows: those whose key came to the master, those whose time is over."""
        if self._follow:
            newer = self.operator.master.newer()
            if newer is not None:
                since = self.operator.master.manifest.version
                self.operator.move_to(newer)
                yield from self._retried(newer.touched_since(since))
        if len(self._held):
            over = self._held.taken_before(self._clock.now_ns())
            self._bury(over, f"no partner in {self._name} within {self._retry_for}")
        self.counts.waiting = len(self._held)

    def finish(self) -> Iterator[pa.RecordBatch]:
        """The end of the stream: rows that are still held become dead letters."""
        yield from self.tick()
        self._bury(self._held.taken_all(), f"no partner in {self._name} when the stream ended")
        self.counts.waiting = len(self._held)

    def close(self) -> None:
        """Free the join's memory and files."""
        self.operator.close()

    def _with_key(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Without rows that can never have a partner, where these are dead letters."""
        if self.missing not in ("dead", "retry"):
            return batch
        null = _null_keys(batch, self.operator.binding.key_names)
        if null is None:
            return batch
        self._bury(batch.filter(null), NULL_KEY)
        return batch.filter(pc.invert(null))

    def _sorted(self, result: pa.RecordBatch, *, held: bool = False) -> Iterator[pa.RecordBatch]:
        """Hand matched rows on, and do with the others what the rule says."""
        matched = result
        if self._marks:
            met = result.column(_MARK)
            matched = (result if pc.all(met).as_py() else result.filter(met)).select(self._shown)
            self._without_partner(result.filter(pc.invert(met)).select(self.schema.names), held)
        self._count()
        if matched.num_rows:
            self.counts.rows_out += matched.num_rows
            yield matched

    def _without_partner(self, rows: pa.RecordBatch, held: bool) -> None:
        if rows.num_rows == 0:
            return
        if self.missing == "drop":
            self.counts.unmatched += rows.num_rows
        elif self.missing == "dead":
            self._bury(rows, f"no partner in {self._name}")
        elif not held:
            self._hold(rows)

    def _count(self) -> None:
        # A row may have several partners, and so several results: the join counts rows.
        stats = self.operator.stats
        self.counts.matched = stats.rows_matched
        if self.missing == "null":
            self.counts.unmatched = stats.rows_unmatched

    def _hold(self, rows: pa.RecordBatch) -> None:
        keys, _ = self.operator.binding.keys(rows)
        self._held.add(rows, keys.key64.copy(), self._clock.now_ns() + self._patience_ns)
        self.counts.waiting = len(self._held)
        while self._held.size_bytes > self._most_held_bytes and len(self._held):
            size = format_bytes(self._most_held_bytes)
            self._bury(
                self._held.taken_oldest(),
                f"no partner in {self._name}, and more rows wait than fit into {size}",
            )

    def _retried(self, touched: npt.NDArray[np.int64] | None) -> Iterator[pa.RecordBatch]:
        """Look held rows up again whose keys were touched; those still unknown wait on."""
        for rows, deadline_ns in self._held.taken_of(touched):
            found, before = _Found(), self.counts.matched
            for result in run(self.operator, [rows]):
                yield from self._sorted(result, held=True)
                found.add(result)
            self.counts.released += self.counts.matched - before
            still = found.unmatched(rows)
            if still.num_rows:
                keys, _ = self.operator.binding.keys(still)
                self._held.add(still, keys.key64.copy(), deadline_ns)

    def _bury(self, rows: pa.RecordBatch, reason: str) -> None:
        if rows.num_rows == 0:
            return
        self.counts.dead += rows.num_rows
        self.counts.reasons[reason] = self.counts.reasons.get(reason, 0) + rows.num_rows
        self.counts.waiting = len(self._held)
        self._dead(with_reason(rows, reason))


class _Found:
    """The rows of a retry that have no partner yet, out of the results."""

    def __init__(self) -> None:
        self._parts: list[pa.RecordBatch] = []

    def add(self, result: pa.RecordBatch) -> None:
        self._parts.append(result.filter(pc.invert(result.column(_MARK))))

    def unmatched(self, like: pa.RecordBatch) -> pa.RecordBatch:
        names = like.schema.names
        parts = [part.select(names) for part in self._parts if part.num_rows]
        if not parts:
            return like.slice(0, 0)
        return pa.Table.from_batches(parts).combine_chunks().to_batches()[0]


class _Held:
    """Rows that wait for their key, in portions that came together, oldest first."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._portions: list[tuple[pa.RecordBatch, npt.NDArray[np.int64], int]] = []

    def __len__(self) -> int:
        return sum(rows.num_rows for rows, _, _ in self._portions)

    @property
    def size_bytes(self) -> int:
        return sum(rows.nbytes + keys.nbytes for rows, keys, _ in self._portions)

    def add(self, rows: pa.RecordBatch, keys: npt.NDArray[np.int64], deadline_ns: int) -> None:
        # A filtered batch may share buffers with a larger one: held rows are copied out of it.
        rows = pa.concat_batches([rows])
        self._portions.append((rows, keys, deadline_ns))
        self._portions.sort(key=lambda portion: portion[2])

    def taken_before(self, now_ns: int) -> pa.RecordBatch:
        over = [portion for portion in self._portions if portion[2] <= now_ns]
        self._portions = [portion for portion in self._portions if portion[2] > now_ns]
        return self._joined(over)

    def taken_oldest(self) -> pa.RecordBatch:
        return self._joined([self._portions.pop(0)])

    def taken_all(self) -> pa.RecordBatch:
        taken, self._portions = self._portions, []
        return self._joined(taken)

    def taken_of(self, touched: npt.NDArray[np.int64] | None) -> list[tuple[pa.RecordBatch, int]]:
        """Rows with one of these keys (None: all), by portion, with their deadlines."""
        taken, kept = [], []
        for rows, keys, deadline_ns in self._portions:
            among = np.ones(len(keys), bool) if touched is None else np.isin(keys, touched)
            if among.any():
                taken.append((rows.filter(pa.array(among)), deadline_ns))
            if not among.all():
                rest = pa.concat_batches([rows.filter(pa.array(~among))])
                kept.append((rest, keys[~among], deadline_ns))
        self._portions = kept
        return taken

    def _joined(
        self, portions: list[tuple[pa.RecordBatch, npt.NDArray[np.int64], int]]
    ) -> pa.RecordBatch:
        if not portions:
            return pa.RecordBatch.from_pylist([], schema=self._schema)
        return pa.concat_batches([rows for rows, _, _ in portions])


def enrich(
    stream: StreamLike,
    master: str | Path | FileMaster | Table,
    on: On,
    *,
    missing: str = "null",
    retry_for: str | None = None,
    dead_letters: type_of_dead_letters | None = None,
    clock: Clock | None = None,
    **options: Any,
) -> EnrichedStream:
    """Join a stream with a master that may change, with a rule for rows without a partner.

    `missing` is "null", "drop", "dead" or "retry"; with the last, rows wait for their key for
    `retry_for` ("1 hour"). `dead_letters` is called with batches of the rows that are given up:
    the stream's columns, and `reason`. `options` are those of `semistream.join`. The result is an
    iterator of batches with `.counts`, which sum up.
    """
    return star(
        stream,
        [Dimension(master, on, missing=missing, retry_for=retry_for, options=options)],
        dead_letters=dead_letters,
        clock=clock,
    )


@dataclass(frozen=True)
class Dimension:
    """A master of a star schema: how rows find it, its memory, and its rule for unknown keys.

    `options` are further ones of `semistream.join`: `columns`, `memory`, `algorithm` and so on.
    """

    master: str | Path | FileMaster | Table
    on: On
    missing: str = "null"
    retry_for: str | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_rule(self.missing, self.retry_for)


def star(
    stream: StreamLike,
    dimensions: Sequence[Dimension],
    *,
    dead_letters: type_of_dead_letters | None = None,
    clock: Clock | None = None,
) -> EnrichedStream:
    """Enrich a stream by several masters in one pass, each with its own memory and rule.

    Results of one are the stream of the next, so that a row may be looked up by what an earlier
    master gave it. Dead letters have the columns of the stream, whichever master did not know them.
    """
    if not dimensions:
        raise OptionError("there is no dimension", hint="give at least one Dimension(...)")
    batches, schema = batches_of(stream)
    if schema is None:
        return EnrichedStream([], batches)
    stages: list[Enricher] = []
    dead = _forget if dead_letters is None else dead_letters
    names = [*schema.names, REASON]

    def bury(rows: pa.RecordBatch) -> None:
        dead(rows.select(names))

    now = schema
    for one in dimensions:
        stage = Enricher(
            now,
            one.master,
            one.on,
            missing=one.missing,
            retry_for=one.retry_for,
            dead_letters=bury,
            clock=clock,
            **one.options,
        )
        stages.append(stage)
        now = stage.output_schema
    return EnrichedStream(stages, batches)


class EnrichedStream(Iterator[pa.RecordBatch]):
    """The results, batch by batch; `counts` has a record for every dimension."""

    def __init__(self, stages: Sequence[Enricher], batches: Iterator[pa.RecordBatch]) -> None:
        self.stages = stages
        self._results = self._run(batches)

    @property
    def schema(self) -> pa.Schema | None:
        """The schema of the results; None if the stream was empty and had none."""
        return self.stages[-1].output_schema if self.stages else None

    @property
    def counts(self) -> list[Counts]:
        """Where the rows are, for every dimension."""
        return [stage.counts for stage in self.stages]

    def __next__(self) -> pa.RecordBatch:
        return next(self._results)

    def read_all(self) -> pa.Table:
        """All remaining results in one table: for results that fit into memory."""
        return pa.Table.from_batches(list(self), schema=self.schema)

    def _run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            for batch in batches:
                yield from self._through(0, batch)
            for number, stage in enumerate(self.stages):
                for result in stage.finish():
                    yield from self._through(number + 1, result)
        finally:
            for stage in self.stages:
                stage.close()

    def _through(self, number: int, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        if number == len(self.stages):
            yield batch
            return
        for result in self.stages[number].push(batch):
            yield from self._through(number + 1, result)


def check_rule(missing: str, retry_for: str | None) -> None:
    """Raise for a rule that does not exist, or without what it needs."""
    if missing not in MISSING:
        raise OptionError(
            f"missing={missing!r} is not a rule for rows without a partner",
            hint=f"use one of {', '.join(MISSING)}",
        )
    if (missing == "retry") != (retry_for is not None):
        raise OptionError(
            f"missing={missing!r} and retry_for={retry_for!r} do not go together",
            hint='write missing="retry", retry_for="1 hour"',
        )
    if retry_for is not None:
        parse_milliseconds(retry_for, what="retry_for")


def with_reason(rows: pa.RecordBatch, reason: str) -> pa.RecordBatch:
    """Rows as dead letters."""
    return rows.append_column(REASON, pa.array([reason] * rows.num_rows, pa.string()))


def _null_keys(batch: pa.RecordBatch, names: Sequence[str]) -> pa.Array | None:
    """Which rows have a null in the key; None if no row has."""
    null = None
    for name in names:
        column = batch.column(name)
        if column.null_count:
            null = column.is_null() if null is None else pc.or_(null, column.is_null())
    return null


def _forget(rows: pa.RecordBatch) -> None:
    """Nobody asked for dead letters; they are counted."""
