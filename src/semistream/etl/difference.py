"""Snapshot differences: what a full snapshot says has changed, as a change feed.

S - R are rows that are new, same keys with other content are changed, and R - S, at the end of the
snapshot, are deleted. What comes out can be applied to the master (`apply_changes`), after which it
holds what the snapshot holds.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from semistream.core.budget import parse_bytes, type_of_size
from semistream.core.errors import OptionError, SchemaError
from semistream.joins.api import StreamLike, batches_of, join, run
from semistream.joins.registry import make_join
from semistream.store.build import build_master
from semistream.store.file import FileMaster, open_master
from semistream.store.inspect import master_rows

OP = "op"
CHANGES = ("insert", "update", "delete")

_MARK = "\0known"


@dataclass
class DifferenceCounts:
    """What a snapshot had, compared with the master."""

    rows_in: int = 0
    inserted: int = 0
    updated: int = 0
    same: int = 0
    deleted: int = 0
    null_keys: int = 0


class SnapshotDifference(Iterator[pa.RecordBatch]):
    """The changes, batch by batch, in the master's columns and `op`; `counts` says how many."""

    def __init__(
        self, changes: Iterator[pa.RecordBatch], counts: DifferenceCounts, schema: pa.Schema
    ) -> None:
        self._changes = changes
        self.counts = counts
        self.schema = schema

    def __next__(self) -> pa.RecordBatch:
        return next(self._changes)

    def reader(self) -> pa.RecordBatchReader:
        """The changes as a reader, for `apply_changes`; there may be none."""
        return pa.RecordBatchReader.from_batches(self.schema, self)

    def read_all(self) -> pa.Table:
        """All remaining changes in one table."""
        return pa.Table.from_batches(list(self), schema=self.schema)


def snapshot_difference(
    snapshot: StreamLike,
    master: str | Path | FileMaster,
    *,
    changes: Sequence[str] = CHANGES,
    memory: type_of_size = "64MB",
    algorithm: str = "auto",
    scratch: str | Path | None = None,
    **options: Any,
) -> SnapshotDifference:
    """Compare a full snapshot with a master: a feed of inserts, updates and deletes.

    `snapshot` is a stream of rows with the master's columns, each key once. Rows whose key the
    master has not are inserts, those of which a column differs are updates (null equals null), and
    keys of the master that the snapshot does not have are deletes, which come at the end. `changes`
    may ask for some of them only: without "delete" nothing has to be kept of the snapshot. Else its
    keys are written to `scratch` (a temporary folder) and sorted there, within the same memory.
    Rows with a null in the key are counted and left out.
    """
    for change in changes:
        if change not in CHANGES:
            raise OptionError(f"there is no change {change!r}", hint=f"use {', '.join(CHANGES)}")
    batches, schema = batches_of(snapshot)
    opened = master if isinstance(master, FileMaster) else open_master(master)
    counts = DifferenceCounts()
    if schema is None:
        schema = opened.schema
    for name in opened.schema.names:
        if name not in schema.names:
            raise SchemaError(
                f"the snapshot has no column {name!r}, which the master has",
                hint="a snapshot has all columns of the master's table",
            )
    limit = parse_bytes(memory, of=opened.data_bytes)
    work = _Difference(opened, schema, counts, limit, algorithm, options)
    return SnapshotDifference(work.run(batches, tuple(changes), scratch), counts, work.output)


class _Difference:
    def __init__(
        self,
        master: FileMaster,
        schema: pa.Schema,
        counts: DifferenceCounts,
        limit_bytes: int,
        algorithm: str,
        options: dict[str, Any],
    ) -> None:
        self.master, self.counts = master, counts
        self.limit_bytes, self.algorithm, self.options = limit_bytes, algorithm, options
        self.key = list(master.manifest.key)
        self.others = [name for name in master.schema.names if name not in self.key]
        self.schema = pa.schema([schema.field(name) for name in master.schema.names])
        self.output = master.schema.append(pa.field(OP, pa.string(), nullable=False))

    def run(
        self, batches: Iterator[pa.RecordBatch], changes: tuple[str, ...], scratch: Any
    ) -> Iterator[pa.RecordBatch]:
        with tempfile.TemporaryDirectory(dir=scratch) as folder:
            keys = Path(folder) / "keys.arrow"
            if "delete" not in changes:
                yield from self._compared(batches, changes)
                return
            kept = pa.schema([self.schema.field(name) for name in self.key])
            with pa.ipc.new_file(str(keys), kept) as file:
                yield from self._compared(_noted(batches, file, self.key), changes)
            yield from self._deleted(keys, Path(folder) / "snapshot.master")

    def _compared(
        self, batches: Iterator[pa.RecordBatch], changes: tuple[str, ...]
    ) -> Iterator[pa.RecordBatch]:
        names, others = self.schema.names, self.others
        counts = self.counts
        how = "left" if others else "anti"
        operator = make_join(
            self.algorithm, self.master, on=self.key, schema=self.schema, how=how,
            memory=self.limit_bytes, mark=_MARK if others else None, **self.options,
        )  # fmt: skip

        def shaped() -> Iterator[pa.RecordBatch]:
            for batch in batches:
                counts.rows_in += batch.num_rows
                batch = batch.select(names)
                for name in self.key:
                    if batch.column(name).null_count:
                        valid = batch.column(name).is_valid()
                        counts.null_keys += batch.num_rows - pc.sum(valid).as_py()
                        batch = batch.filter(valid)
                yield batch

        with operator:
            for result in run(operator, shaped()):
                met = result.column(_MARK) if others else pa.array([False] * result.num_rows)
                new = result.filter(pc.invert(met))
                counts.inserted += new.num_rows
                if new.num_rows and "insert" in changes:
                    yield self._change(new, "insert")
                known = result.filter(met)
                if known.num_rows == 0:
                    continue
                theirs = operator.output_schema.names[len(names) : -1]
                differs = _differs(known, others, theirs, self.master.schema)
                changed = known.filter(differs)
                counts.updated += changed.num_rows
                counts.same += known.num_rows - changed.num_rows
                if changed.num_rows and "update" in changes:
                    yield self._change(changed, "update")
        if not others:
            counts.same = counts.rows_in - counts.null_keys - counts.inserted

    def _deleted(self, keys: Path, path: Path) -> Iterator[pa.RecordBatch]:
        """Rows of the master without a partner in the snapshot, which is a master by now."""
        build_master(path, str(keys), self.key, memory=max(self.limit_bytes, 1 << 20))
        gone = join(master_rows(self.master), path, on=self.key, how="anti",
                    memory=self.limit_bytes, algorithm=self.algorithm)  # fmt: skip
        for batch in gone:
            self.counts.deleted += batch.num_rows
            yield self._change(batch, "delete")

    def _change(self, rows: pa.RecordBatch, op: str) -> pa.RecordBatch:
        columns = [rows.column(field.name).cast(field.type) for field in self.master.schema]
        columns.append(pa.array([op] * rows.num_rows, pa.string()))
        return pa.RecordBatch.from_arrays(columns, schema=self.output)


def _noted(
    batches: Iterator[pa.RecordBatch], file: Any, key: list[str]
) -> Iterator[pa.RecordBatch]:
    """The same batches, with their keys written down on the way."""
    for batch in batches:
        file.write_batch(batch.select(key))
        yield batch


def _differs(
    rows: pa.RecordBatch, ours: list[str], theirs: list[str], schema: pa.Schema
) -> pa.Array:
    """Whether any column differs from the master's; null equals null, and not a number itself."""
    differs = pa.array([False] * rows.num_rows)
    for name, other in zip(ours, theirs, strict=True):
        a, b = rows.column(name), rows.column(other)
        a = a.cast(schema.field(name).type) if a.type != schema.field(name).type else a
        same = _same(a, b)
        differs = pc.or_(differs, pc.invert(same))
    return differs


def _same(a: pa.Array, b: pa.Array) -> pa.Array:
    both = pc.and_(a.is_null(), b.is_null())
    if pa.types.is_nested(a.type):
        # Arrow does not compare lists and structs; their text is one and the same.
        texts = [pa.array([str(x) for x in column.to_pylist()], pa.string()) for column in (a, b)]
        equal = pc.equal(*texts)
    else:
        equal = pc.equal(a, b)
        if pa.types.is_floating(a.type):
            equal = pc.or_kleene(equal, pc.and_(pc.is_nan(a), pc.is_nan(b)))
    return pc.or_(both, pc.fill_null(equal, False))
