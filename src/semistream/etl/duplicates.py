"""Duplicates: rows whose key, or whose like, was seen before.

What was seen is a master, so that it may be larger than memory and outlives the process. Of equal
keys the first row wins; the others are left out, or all are handed on with a flag.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from semistream.core.budget import parse_bytes, type_of_size
from semistream.core.conditions import Condition, compare
from semistream.core.errors import OptionError, SchemaError
from semistream.joins.api import StreamLike, batches_of, join, run
from semistream.joins.binding import On
from semistream.joins.registry import make_join
from semistream.store.apply import apply_changes
from semistream.store.build import build_master
from semistream.store.file import FileMaster, open_master
from semistream.store.manifest import read_manifest

KEEP = ("first", "flag")

SEEN = "seen_in"
"""The column of a master of seen keys: the number of the batch in which each came first."""

_MARK, _ROW = "\0known", "\0row"


def new_seen(
    path: str | Path, columns: Mapping[str, pa.DataType], *, shards: int = 1, fill: float = 0.8
) -> None:
    """An empty master of seen keys for `duplicates`, with these key columns."""
    fields = [*(pa.field(name, type_) for name, type_ in columns.items())]
    schema = pa.schema([*fields, pa.field(SEEN, pa.int64(), nullable=False)])
    build_master(path, schema.empty_table(), list(columns), shards=shards, fill=fill)


class SeenKeys:
    """Finds rows whose key was seen before, in the master or earlier in the batch.

    Rows with a null in the key are no duplicates of each other. Keys that are new are inserted into
    the master, so that the next batch knows them; `batch_number` is noted with them.
    """

    def __init__(
        self,
        schema: pa.Schema,
        master: str | Path | FileMaster,
        on: On,
        *,
        keep: str = "first",
        flag: str = "is_duplicate",
        memory: type_of_size = "64MB",
        algorithm: str = "auto",
        **options: Any,
    ) -> None:
        _check_keep(keep, flag, schema)
        opened = master if isinstance(master, FileMaster) else open_master(master)
        if SEEN not in opened.schema.names:
            raise SchemaError(
                f"{str(opened.path)!r} is not a master of seen keys: it has no column {SEEN!r}",
                hint="make it with semistream.etl.new_seen",
            )
        self.path = opened.path
        self.keep = keep
        self.rows_in = 0
        self.duplicates = 0
        numbered = schema.append(pa.field(_ROW, pa.int64()))
        self._schema = schema
        self.operator = make_join(
            algorithm,
            opened,
            on=on,
            schema=numbered,
            how="left",
            columns=[SEEN],
            memory=memory,
            mark=_MARK,
            **options,
        )
        self.output_schema = schema
        if keep == "flag":
            self.output_schema = schema.append(pa.field(flag, pa.bool_(), nullable=False))

    def sift(self, batch: pa.RecordBatch, batch_number: int = 0) -> pa.RecordBatch:
        """The rows of a batch in their order, without duplicates or with a flag."""
        rows = batch.num_rows
        numbered = batch.append_column(_ROW, pa.array(np.arange(rows)))
        duplicate = np.zeros(rows, bool)
        unknown: list[npt.NDArray[np.int64]] = []
        for result in run(self.operator, [numbered]):
            number = result.column(_ROW).to_numpy()
            met = result.column(_MARK).to_numpy(zero_copy_only=False)
            duplicate[number[met]] = True
            unknown.append(number[~met])
        fresh = np.sort(np.concatenate([np.empty(0, np.int64), *unknown]))
        if len(fresh):
            later, new = self._first_ones(batch.take(pa.array(fresh)))
            duplicate[fresh[later]] = True
            if new.num_rows:
                stored = new.append_column(SEEN, pa.array(np.full(new.num_rows, batch_number)))
                apply_changes(self.path, stored, op=None)
        self.rows_in += rows
        self.duplicates += int(duplicate.sum())
        return self._shaped(batch, duplicate)

    def follow(self) -> None:
        """Move to the newest version of the master: what earlier batches brought is known then."""
        newer = self.operator.master.newer()
        if newer is not None:
            self.operator.move_to(newer)

    def close(self) -> None:
        """Free the join's memory and files."""
        self.operator.close()

    def _first_ones(self, rows: pa.RecordBatch) -> tuple[npt.NDArray[np.bool_], pa.Table]:
        """Which rows have an earlier one of the same key, and the keys of those that have none."""
        binding = self.operator.binding
        given, names = binding.key_names, binding.spec.names
        columns = binding.spec.cast([rows.column(name) for name in given], given)
        keys = pa.table(dict(zip(names, columns, strict=True)))
        keys = keys.append_column(_ROW, pa.array(np.arange(rows.num_rows)))
        for name in names:
            keys = keys.filter(pc.is_valid(pc.field(name)))
        firsts = keys.group_by(names).aggregate([(_ROW, "min")])
        later = np.zeros(rows.num_rows, bool)
        later[keys[_ROW].to_numpy()] = True
        later[firsts[f"{_ROW}_min"].to_numpy()] = False
        return later, firsts.select(names)

    def _shaped(self, batch: pa.RecordBatch, duplicate: npt.NDArray[np.bool_]) -> pa.RecordBatch:
        return _shaped(batch, duplicate, self.keep, self.output_schema)


def duplicates(
    stream: StreamLike,
    seen: str | Path | FileMaster,
    on: On,
    **options: Any,
) -> Iterator[pa.RecordBatch]:
    """Leave out rows whose key came before, or flag them.

    `seen` is a master of the keys that were seen, as `new_seen` makes it; keys that are new are
    inserted. `keep="first"` hands the first row of a key on, `keep="flag"` all rows, with a column
    `flag` ("is_duplicate") that is true for all but the first. Rows stay in their order.
    """
    batches, schema = batches_of(stream)
    if schema is None:
        return
    keys = SeenKeys(schema, seen, on, **options)
    try:
        for number, batch in enumerate(batches):
            keys.follow()
            result = keys.sift(batch, number)
            if result.num_rows:
                yield result
    finally:
        keys.close()


def similar(
    stream: StreamLike,
    seen: str | Path,
    condition: Condition,
    *,
    keep: str = "first",
    flag: str = "is_duplicate",
    **options: Any,
) -> Iterator[pa.RecordBatch]:
    """Leave out, or flag, rows for which an earlier row meets a condition, such as a band.

    `seen` is a master with columns of the stream, among them all that the condition names; its key
    need not be unique. In the condition the stream's columns are those of a row, the master's those
    of an earlier one. Every row is remembered, so that a row is a duplicate if *any* earlier row is
    its like, whether that was one itself or not. `options` are those of `semistream.join`.
    """
    batches, schema = batches_of(stream)
    if schema is None:
        return
    rows = SimilarRows(schema, condition, keep=keep, flag=flag, **options)
    for batch in batches:
        with open_master(seen) as master:
            result = rows.sift(batch, master)
        remember(seen, batch)
        if result.num_rows:
            yield result


class SimilarRows:
    """Finds rows of which an earlier one, in a master or in the same batch, is the like."""

    def __init__(
        self,
        schema: pa.Schema,
        condition: Condition,
        *,
        keep: str = "first",
        flag: str = "is_duplicate",
        memory: type_of_size = "64MB",
        **options: Any,
    ) -> None:
        _check_keep(keep, flag, schema)
        self.condition, self.keep, self.options = condition, keep, options
        self._memory = parse_bytes(memory) // 2
        self.output_schema = schema
        if keep == "flag":
            self.output_schema = schema.append(pa.field(flag, pa.bool_(), nullable=False))

    def sift(self, batch: pa.RecordBatch, seen: FileMaster) -> pa.RecordBatch:
        """The rows of a batch in their order, without duplicates or with a flag."""
        numbered = batch.append_column(_ROW, pa.array(np.arange(batch.num_rows)))
        duplicate = np.zeros(batch.num_rows, bool)
        self._compare(numbered, seen, self.condition, duplicate)
        with tempfile.TemporaryDirectory() as folder:
            # The rows of the batch are compared with those before them in the same way.
            own = Path(folder) / "batch"
            columns = [*seen.schema.names, _ROW]
            build_master(own, numbered.select(columns), list(seen.manifest.key))
            earlier = self.condition & compare(_ROW, ">", _ROW)
            self._compare(numbered, own, earlier, duplicate)
        return _shaped(batch, duplicate, self.keep, self.output_schema)

    def _compare(
        self,
        rows: pa.RecordBatch,
        others: Path | FileMaster,
        condition: Condition,
        duplicate: npt.NDArray[np.bool_],
    ) -> None:
        found = join(
            rows, others, how="semi", condition=condition, memory=self._memory, **self.options
        )
        for result in found:
            duplicate[result.column(_ROW).to_numpy()] = True


def remember(seen: str | Path, rows: pa.RecordBatch, **batch: Any) -> None:
    """Add rows to a master of rows that were seen; `batch` is `feed` and `batch` of
    `apply_changes`, which add them once."""
    columns = read_manifest(seen).schema.names
    inserted = pa.array(["insert"] * rows.num_rows)
    changes = rows.select(columns).append_column("\0op", inserted)
    apply_changes(seen, changes, op="\0op", inserts="add", bad="skip", **batch)


def _shaped(
    batch: pa.RecordBatch, duplicate: npt.NDArray[np.bool_], keep: str, schema: pa.Schema
) -> pa.RecordBatch:
    if keep == "flag":
        return pa.RecordBatch.from_arrays([*batch.columns, pa.array(duplicate)], schema=schema)
    return batch.filter(pa.array(~duplicate)) if duplicate.any() else batch


def _check_keep(keep: str, flag: str, schema: pa.Schema) -> None:
    if keep not in KEEP:
        raise OptionError(f"keep={keep!r} is not known", hint=f"use {' or '.join(KEEP)}")
    if keep == "flag" and flag in schema.names:
        raise OptionError(f"flag={flag!r} is a column of the stream", hint="choose another name")
