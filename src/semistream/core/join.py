"""The contract of every join of a stream with a master."""

from __future__ import annotations

import io
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import ClassVar, Self

import pyarrow as pa

from semistream.core.stats import JoinStats

HOWS = ("inner", "left", "semi", "anti")


@dataclass(frozen=True)
class Traits:
    """What an algorithm needs and can do, for people who choose one."""

    paper: str
    idea: str
    needs_index: bool = True
    many_to_many: bool = True
    skew: str = "none"


@dataclass(frozen=True)
class Snapshot:
    """What must survive a crash: rows that wait, results not yet taken, positions.

    `rows` are the waiting rows in the stream's columns, with what the algorithm must know of each
    in further columns. Caches are not part of it: they fill again. `arrived` are rows of a join
    that sheds, which have not reached the algorithm yet.
    """

    algorithm: str
    rows: pa.RecordBatch
    pending: pa.RecordBatch | None = None
    position: dict[str, int] = field(default_factory=dict)
    arrived: pa.RecordBatch | None = None

    def to_bytes(self) -> bytes:
        """The snapshot as bytes, to be kept wherever the caller keeps its state."""
        head = {"algorithm": self.algorithm, "position": self.position}
        parts = [json.dumps(head).encode()]
        for batch in (self.rows, self.pending, self.arrived):
            sink = io.BytesIO()
            if batch is not None:
                with pa.ipc.new_stream(sink, batch.schema) as writer:
                    writer.write_batch(batch)
            parts.append(sink.getvalue())
        return b"".join(len(part).to_bytes(8, "little") + part for part in parts)

    @classmethod
    def from_bytes(cls, data: bytes) -> Snapshot:
        """The snapshot that `to_bytes` wrote."""
        parts, at = [], 0
        while at < len(data):
            size = int.from_bytes(data[at : at + 8], "little")
            parts.append(data[at + 8 : at + 8 + size])
            at += 8 + size
        head = json.loads(parts[0])
        rows, pending, arrived = (
            pa.ipc.open_stream(part).read_next_batch() if part else None
            for part in [*parts[1:], b""][:3]  # written before there was a fourth part
        )
        assert rows is not None
        return cls(head["algorithm"], rows, pending, head["position"], arrived)


class SemiStreamJoin(ABC):
    """A join of a stream with a master larger than memory.

    Call order. Rows come in by `push`, in any number of calls; it accepts as many as there is room
    for and says how many. It may read and join pages to make room, as long as results find theirs.
    A refused row is offered again after a `step`, which does one iteration of the algorithm's outer
    loop and returns results; `take` returns those that are ready without doing anything. With a
    bound on waiting, or where rows are shed, `is_due` says when else a `step` is wanted. `finish`
    drains: after it nothing waits, and `push` may be called again. `drained` does all of that for a
    batch that is to be joined completely, and faster where a join knows how; `pushed` takes a whole
    batch in, and lets its rows wait unless it `drains` a batch of that size. The results of both
    are taken to the end before anything else is called. `snapshot` may be called between any two
    calls, `restore` only on a join that has not yet accepted a row. `close` ends it; after that
    every call is an error. None of these block but for reads of the master, and none keeps a
    reference to a batch that was pushed.

    Each accepted row is, at any moment, matched, unmatched or waiting; no row waits for ever.
    """

    name: ClassVar[str]
    traits: ClassVar[Traits]

    output_schema: pa.Schema
    """Columns of the results: the stream's, then the master's but for the key."""

    @property
    @abstractmethod
    def stats(self) -> JoinStats:
        """Counters up to now."""

    @abstractmethod
    def push(self, batch: pa.RecordBatch) -> int:
        """Offer rows; the number accepted, counted from the first. Fewer means: `step` first."""

    @abstractmethod
    def step(self) -> pa.RecordBatch | None:
        """One iteration of the outer loop; results, or None if there are none yet."""

    @abstractmethod
    def take(self) -> pa.RecordBatch | None:
        """Results that are ready, without any work."""

    @property
    def is_due(self) -> bool:
        """Whether a `step` is wanted now though no row was refused, so that none waits too long."""
        return False

    @abstractmethod
    def finish(self) -> Iterator[pa.RecordBatch]:
        """Work until no row waits, yielding results."""

    def drained(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Join all rows of a batch, and those that wait; afterwards nothing waits.

        For micro-batches, each to be answered by itself.
        """
        yield from self.pushed(batch)
        yield from self.finish()

    def drains(self, rows: int) -> bool:
        """Whether a batch of so many rows is joined faster completely than beside rows that wait.

        As far as is known now; for small batches it never is.
        """
        return False

    def pushed(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Take all rows of a batch in; the results that must go to make room for others.

        Rows may wait afterwards, and results be ready.
        """
        rest = batch
        while rest.num_rows:
            if self.drains(rest.num_rows):
                yield from self.drained(rest)
                return
            rest = rest.slice(self.push(rest))
            result = self.step() if rest.num_rows else None
            if result is not None:
                yield result

    @abstractmethod
    def snapshot(self) -> Snapshot:
        """What must survive a crash. Results that are ready are part of it and stay here too."""

    @abstractmethod
    def restore(self, snapshot: Snapshot) -> None:
        """Go on where a snapshot was made, on a fresh join with the same master and options."""

    @abstractmethod
    def close(self) -> None:
        """Free memory, threads and files. May be called twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
