"""`join`: a stream in, joined batches out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa

from semistream.core.budget import type_of_size
from semistream.core.conditions import Condition
from semistream.core.errors import OptionError
from semistream.core.join import SemiStreamJoin
from semistream.core.stats import JoinStats
from semistream.joins.binding import On
from semistream.joins.operator import Operator
from semistream.joins.parallel import ParallelJoin
from semistream.joins.registry import make_join
from semistream.store.file import FileMaster

StreamLike: TypeAlias = (
    "pa.Table | pa.RecordBatch | pa.RecordBatchReader | Iterable[pa.RecordBatch]"
)


class JoinedStream(Iterator[pa.RecordBatch]):
    """The results of a join, batch by batch; `stats` says what happened so far."""

    def __init__(
        self,
        operator: SemiStreamJoin | None,
        batches: Iterator[pa.RecordBatch],
        *,
        follow: bool = False,
    ) -> None:
        self._operator = operator
        self._follow = follow
        self._last = JoinStats() if operator is None else operator.stats
        self._results = self._run(batches)

    @property
    def schema(self) -> pa.Schema | None:
        """The schema of the results; None if the stream was empty and had none."""
        return None if self._operator is None else self._operator.output_schema

    @property
    def stats(self) -> JoinStats:
        """Counters up to now."""
        return self._last if self._operator is None else self._operator.stats

    def __next__(self) -> pa.RecordBatch:
        return next(self._results)

    def close(self) -> None:
        """Stop early and free the join's memory and threads."""
        self._results.close()
        if self._operator is not None:
            self._last = self._operator.stats
            self._operator.close()

    def read_all(self) -> pa.Table:
        """All remaining results in one table: for results that fit into memory."""
        batches = list(self)
        if not batches and self.schema is None:
            raise OptionError("the stream had no batch, so the result has no schema")
        return pa.Table.from_batches(batches, schema=self.schema)

    def _run(self, batches: Iterator[pa.RecordBatch]) -> Any:
        operator = self._operator
        if operator is None:
            return
        try:
            yield from run(operator, batches, follow=self._follow)
        finally:
            self._last = operator.stats
            operator.close()


def run(
    operator: SemiStreamJoin, batches: Iterable[pa.RecordBatch], *, follow: bool = False
) -> Iterator[pa.RecordBatch]:
    """The results of all rows of these batches; afterwards nothing waits in the operator.

    With `follow` every batch sees the version of the master that is current when it comes.
    """
    for batch in batches:
        if follow:
            yield from moved(operator)
        yield from operator.pushed(batch)
        result = operator.take()
        if result is not None:
            yield result
        while operator.is_due:
            result = operator.step()
            if result is not None:
                yield result
    yield from operator.finish()


def moved(operator: SemiStreamJoin) -> Iterator[pa.RecordBatch]:
    """Move a join to the current version of its master, if there is a newer one than it has.

    Rows that wait are joined with the version that they came to; their results are yielded.
    """
    assert isinstance(operator, Operator | ParallelJoin)
    newer = operator.master.newer()
    if newer is not None:
        yield from operator.finish()
        operator.move_to(newer)


def join(
    stream: StreamLike,
    master: str | Path | FileMaster,
    on: On | None = None,
    *,
    how: str = "inner",
    algorithm: str = "auto",
    memory: type_of_size = "64MB",
    columns: Sequence[str] | None = None,
    condition: Condition | None = None,
    mark: str | None = None,
    follow: bool = False,
    threads: int | None = None,
    **options: Any,
) -> JoinedStream:
    """Join a stream with a master within `memory`; an iterator of record batches with `.stats`.

    `stream` is an iterable of `pyarrow.RecordBatch`, a table or a reader. `on` is a column name, a
    list of names, or a mapping from stream columns to master columns. `how` is "inner", "left",
    "semi" or "anti". `memory` is bytes, "64MB", or "5%" of the master. `columns` chooses the
    master's columns, before anything is cached. Results have the stream's columns, then the
    master's but for the key; a name that occurs in both gets the suffix `_master`. Their order is
    not the stream's.

    `condition` is for partners by other than equal keys: `ss.between`, `ss.compare`, `ss.band` or
    `ss.predicate`. With `on` as well both must hold; without it the master's key is a column of the
    results like others. "auto" is then meshjoin, which needs no index.

    `mark` names one more column of a left join's results, true where a row has a partner: nulls
    alone do not tell, since a master may have them too.

    With `follow` each batch of the stream is joined with the version of the master that is current
    when the batch comes, wholly; without it all are joined with the one that is current now.

    `threads` divides the keys among so many threads, in the same memory. By default they are as
    many as there are processors with `algorithm="auto"`, if the memory suffices and the first batch
    is not small, else one.

    `max_wait` ("500 ms", or seconds) bounds the time from taking a row to its result. The stream is
    asked for its next batch in between, so one that has nothing must say so with an empty batch.
    `overload="shed:topw"` drops rows of batches that are larger than the join can keep up with, to
    `shed_to`: see `make_join`.
    """
    batches, schema = batches_of(stream)
    if schema is None:
        return JoinedStream(None, batches)
    operator = make_join(
        algorithm,
        master,
        on=on,
        schema=schema,
        how=how,
        memory=memory,
        columns=columns,
        condition=condition,
        mark=mark,
        threads=threads if threads is not None or algorithm == "auto" else 1,
        **options,
    )
    return JoinedStream(operator, batches, follow=follow)


def batches_of(stream: StreamLike) -> tuple[Iterator[pa.RecordBatch], pa.Schema | None]:
    if isinstance(stream, pa.Table):
        return iter(stream.to_batches()), stream.schema
    if isinstance(stream, pa.RecordBatch):
        return iter([stream]), stream.schema
    if isinstance(stream, pa.RecordBatchReader):
        return iter(stream), stream.schema
    if not isinstance(stream, Iterable):
        raise OptionError(
            f"the stream is a {type(stream).__name__}, not an iterable of record batches",
            hint="give a pyarrow table, a reader, or an iterable of pyarrow.RecordBatch",
        )
    iterator: Iterator[pa.RecordBatch] = iter(stream)
    first = next(iterator, None)
    if first is None:
        return iter(()), None
    if not isinstance(first, pa.RecordBatch):
        raise OptionError(
            f"the stream yields {type(first).__name__}, not pyarrow.RecordBatch",
            hint="convert with pyarrow.RecordBatch.from_pandas or from_pydict",
        )
    return _chain(first, iterator), first.schema


def _chain(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from rest
