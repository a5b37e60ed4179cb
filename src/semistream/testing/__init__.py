"""Help for tests of code that uses semistream: sources, sinks and a clock driven by hand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa


class ManualClock:
    """A clock that stands still until it is told to go on."""

    real = False

    def __init__(self, now_ns: int = 0) -> None:
        self._now_ns = now_ns

    def now_ns(self) -> int:
        """The time that was set."""
        return self._now_ns

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._now_ns += int(seconds * 1e9)


class ListSource:
    """A stream of given batches; None stands for a pause."""

    def __init__(self, batches: Iterable[pa.RecordBatch | None]) -> None:
        self._batches = list(batches)

    def __iter__(self) -> Iterator[pa.RecordBatch | None]:
        return iter(self._batches)


class ListSink:
    """Collects result batches."""

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []

    def write(self, batch: pa.RecordBatch | None) -> None:
        """Keep a batch; None is ignored, so that `step` can be written as it comes."""
        if batch is not None:
            self.batches.append(batch)

    def table(self, schema: pa.Schema) -> pa.Table:
        """Everything that was written."""
        return pa.Table.from_batches(self.batches, schema=schema)
