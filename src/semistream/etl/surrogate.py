"""Surrogate keys: the keys of many sources replaced by those of the warehouse.

The lookup table R(source, id, skey) of the MESHJOIN and SSIJ papers is a master; a row whose key is
not in it gets the next number, which is written into the master before any row with it is handed
on. So a key has one surrogate, for all tasks and after every restart.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semistream.core.budget import type_of_size
from semistream.core.errors import OptionError, unknown_name
from semistream.joins.api import StreamLike, batches_of, join, run
from semistream.joins.binding import On
from semistream.joins.registry import make_join
from semistream.store.apply import apply_changes
from semistream.store.build import build_master
from semistream.store.file import FileMaster, open_master
from semistream.store.inspect import master_rows

FEED = "surrogate keys"
"""Under this name the master remembers the highest surrogate that was given out."""

LOCK = "SURROGATES.LOCK"

_MARK, _ROW = "\0known", "\0row"


def new_lookup(
    path: str | Path,
    columns: Mapping[str, pa.DataType],
    *,
    key: str = "surrogate",
    shards: int = 1,
    fill: float = 0.8,
) -> None:
    """An empty lookup master for `surrogate_keys`: these key columns, and one for the surrogate."""
    fields = [*(pa.field(name, type_) for name, type_ in columns.items())]
    schema = pa.schema([*fields, pa.field(key, pa.int64(), nullable=False)])
    build_master(path, schema.empty_table(), list(columns), shards=shards, fill=fill)


class SurrogateKeys:
    """Replaces the key of rows by their surrogate, batch by batch; new keys get a new one.

    `key` is the master's column of surrogates and the result's. The columns of `on` are left out of
    the result unless `keep`. A row with a null in its key has `unknown` for a surrogate.
    """

    def __init__(
        self,
        schema: pa.Schema,
        master: str | Path | FileMaster,
        on: On,
        *,
        key: str = "surrogate",
        keep: bool = False,
        unknown: int | None = None,
        memory: type_of_size = "64MB",
        algorithm: str = "auto",
        **options: Any,
    ) -> None:
        opened = master if isinstance(master, FileMaster) else open_master(master)
        if key not in opened.schema.names:
            raise unknown_name("column in the lookup master", key, opened.schema.names)
        if opened.schema.field(key).type != pa.int64():
            raise OptionError(
                f"{key!r} is a column of {opened.schema.field(key).type}, not of int64",
                hint="make the master with semistream.etl.new_lookup",
            )
        self.path = opened.path
        self.key = key
        self.new_keys = 0
        self._unknown = unknown
        self.operator = make_join(
            algorithm,
            opened,
            on=on,
            schema=schema,
            how="left",
            columns=[key],
            memory=memory,
            mark=_MARK,
            **options,
        )
        self._names = self.operator.binding.key_names
        self._surrogate = self.operator.output_schema.names[len(schema)]
        kept = [field for field in schema if keep or field.name not in self._names]
        self.output_schema = pa.schema([*kept, pa.field(key, pa.int64())])

    def assign(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The rows of a batch with their surrogates; new ones are in the master by then."""
        unknown: list[pa.RecordBatch] = []
        for result in run(self.operator, [batch]):
            met = result.column(_MARK)
            known = result.filter(met)
            if known.num_rows:
                yield self._shaped(known, known.column(self._surrogate))
            if known.num_rows < result.num_rows:
                unknown.append(result.filter(pc.invert(met)))
        if unknown:
            rows = pa.Table.from_batches(unknown).combine_chunks().to_batches()[0]
            yield self._shaped(rows, self._new(rows))

    def close(self) -> None:
        """Free the join's memory and files."""
        self.operator.close()

    def _shaped(self, rows: pa.RecordBatch, surrogates: pa.Array) -> pa.RecordBatch:
        if self._unknown is not None:
            surrogates = pc.fill_null(surrogates, self._unknown)
        columns = [rows.column(field.name) for field in list(self.output_schema)[:-1]]
        return pa.RecordBatch.from_arrays([*columns, surrogates], schema=self.output_schema)

    def _new(self, rows: pa.RecordBatch) -> pa.Array:
        """Surrogates of rows whose keys are not in the version of the join."""
        binding = self.operator.binding
        names = binding.spec.names
        columns = binding.spec.cast([rows.column(name) for name in self._names], self._names)
        keys = pa.table(dict(zip(names, columns, strict=True)))
        keys = keys.append_column(_ROW, pa.array(np.arange(rows.num_rows)))
        whole = keys
        for name in names:
            whole = whole.filter(pc.is_valid(pc.field(name)))
        if whole.num_rows == 0:
            return pa.nulls(rows.num_rows, pa.int64())
        distinct = whole.group_by(names).aggregate([(_ROW, "min")])
        distinct = distinct.sort_by(f"{_ROW}_min").select(names)
        given = self._given(distinct)
        found = whole.join(given, keys=names).select([_ROW, self.key]).combine_chunks()
        surrogates = np.zeros(rows.num_rows, np.int64)
        valid = np.zeros(rows.num_rows, bool)
        at = found[_ROW].to_numpy()
        surrogates[at], valid[at] = found[self.key].to_numpy(), True
        return pa.array(surrogates, mask=~valid)

    def _given(self, keys: pa.Table) -> pa.Table:
        """Keys with the surrogates that they have now; those without get one."""
        with _allocating(self.path), open_master(self.path) as master:
            # Another task may have been first with some of them.
            looked_up = join(
                keys, master, on=list(keys.column_names), how="left", columns=[self.key],
                mark=_MARK, memory="16MB",
            ).read_all()  # fmt: skip
            known = looked_up.filter(pc.field(_MARK)).drop_columns([_MARK])
            new = looked_up.filter(~pc.field(_MARK)).select(keys.column_names)
            if new.num_rows:
                first = highest_surrogate(master, self.key) + 1
                numbers = pa.array(np.arange(first, first + new.num_rows))
                new = new.append_column(self.key, numbers)
                stored = new.select(master.schema.names).cast(master.schema)
                highest = first + new.num_rows - 1
                apply_changes(self.path, stored, op=None, feed=FEED, batch=highest)
                self.new_keys += new.num_rows
                known = pa.concat_tables([known.cast(new.schema), new])
        newer = self.operator.master.newer()
        if newer is not None:
            self.operator.move_to(newer)
        return known


def highest_surrogate(master: FileMaster, key: str) -> int:
    """The highest surrogate that was given out; 0 if none was."""
    remembered = master.manifest.feeds.get(FEED)
    if remembered is not None:
        return remembered
    highest = [pc.max(batch.column(key)).as_py() for batch in master_rows(master)]
    return max((one for one in highest if one is not None), default=0)


@contextmanager
def _allocating(path: Path) -> Iterator[None]:
    """The right to give out surrogates, which one process has at a time."""
    file = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


def surrogate_keys(
    stream: StreamLike,
    master: str | Path | FileMaster,
    on: On,
    **options: Any,
) -> Iterator[pa.RecordBatch]:
    """Replace the key columns `on` of a stream by the surrogate keys of the warehouse.

    `master` is a lookup table of the key and its surrogate, as `new_lookup` makes it; a key that is
    not in it is inserted with the next number. `options` are those of `SurrogateKeys`: `key` names
    the column of surrogates, `keep=True` keeps the columns of `on`, `unknown` is the surrogate of
    rows with a null in the key, `memory` the budget.
    """
    batches, schema = batches_of(stream)
    if schema is None:
        return
    keys = SurrogateKeys(schema, master, on, **options)
    try:
        for batch in batches:
            yield from keys.assign(batch)
    finally:
        keys.close()
