"""Rows as packed records, and the way between records and Arrow columns.

A record holds one row: bytes that kernels copy, compare and cache without knowing Arrow.

    [prefix]  stream rows only: key64 (8 bytes) and a link to the next waiting row (4 bytes)
    [nulls]   a bit per leaf, set where the value is null; the bit after the last leaf is free
              for the owner (waiting rows note there that they have met a partner)
    [blob]    4 bytes, only if there are byte strings: where they lie
    [fields]  fixed-width leaves: the value; byte strings: their length (4 bytes)

The byte strings of a row lie one after the other, in the order of the leaves. A key of one integer
column is not repeated in the record: key64 is its value (see `keys.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.core.errors import SchemaError
from semistream.kernels.rows import COLUMNS, FIELDS, count_nulls, spread_nulls
from semistream.kernels.struct import Struct
from semistream.store.columns import ColumnCodec, Leaf, codec_for

PREFIX_BYTES = 12
"""key64 and link in front of a waiting row."""

MOST_NARROW = 2**31 - 1
"""What Arrow's 32-bit offsets can count in one column of a batch."""

_I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RowLayout:
    """Where each column of a schema lies in a record.

    `folded` names the column whose value key64 carries; it takes no room in the record. In a
    layout with a prefix it can still be read, at offset 0; without one it cannot.
    """

    schema: pa.Schema
    prefix_bytes: int
    folded: str | None
    codecs: tuple[ColumnCodec, ...]
    leaves: tuple[Leaf, ...]
    offsets: tuple[int, ...]
    nulls_offset: int
    null_bytes: int
    blob_offset: int
    record_bytes: int

    @classmethod
    def of(cls, schema: pa.Schema, *, prefix: bool, folded: str | None = None) -> RowLayout:
        """Lay out the columns of `schema` in their order."""
        codecs: list[ColumnCodec] = []
        for field in schema:
            try:
                codecs.append(codec_for(field.type))
            except SchemaError as error:
                raise SchemaError(
                    f"column {field.name!r} of type {field.type}: {error.message}", hint=error.hint
                ) from None
        leaves = tuple(leaf for codec in codecs for leaf in codec.leaves)
        prefix_bytes = PREFIX_BYTES if prefix else 0
        null_bytes = (len(leaves) + 1 + 7) // 8
        at = prefix_bytes + null_bytes
        blob_offset = -1
        if any(leaf.is_bytes for leaf in leaves):
            blob_offset = at
            at += 4
        offsets = []
        for field, codec in zip(schema, codecs, strict=True):
            for leaf in codec.leaves:
                if field.name == folded:
                    offsets.append(0)
                    continue
                offsets.append(at)
                at += leaf.width_bytes or 4
        return cls(
            schema=schema,
            prefix_bytes=prefix_bytes,
            folded=folded,
            codecs=tuple(codecs),
            leaves=leaves,
            offsets=tuple(offsets),
            nulls_offset=prefix_bytes,
            null_bytes=null_bytes,
            blob_offset=blob_offset,
            record_bytes=at,
        )

    def prefixed(self, folded: pa.Field | None) -> RowLayout:
        """The same records with a prefix in front, and the column that key64 carries behind all.

        Null bytes stay as they are: the free bit after the last leaf is that column's, never set.
        """
        codec = () if folded is None else (codec_for(folded.type),)
        return replace(
            self,
            schema=self.schema if folded is None else self.schema.append(folded),
            prefix_bytes=PREFIX_BYTES,
            folded=None if folded is None else folded.name,
            codecs=self.codecs + codec,
            leaves=self.leaves + tuple(leaf for one in codec for leaf in one.leaves),
            offsets=(*(at + PREFIX_BYTES for at in self.offsets), *(0 for _ in codec)),
            nulls_offset=PREFIX_BYTES,
            blob_offset=self.blob_offset + PREFIX_BYTES if self.has_bytes else -1,
            record_bytes=self.record_bytes + PREFIX_BYTES,
        )

    @property
    def has_bytes(self) -> bool:
        """Whether a row has byte strings besides its record."""
        return self.blob_offset >= 0

    @cached_property
    def leaf_offsets(self) -> _I64:
        """Where each leaf lies, for kernels."""
        return _i64(self.offsets)

    @cached_property
    def leaf_widths(self) -> _I64:
        """Bytes of each leaf, 0 for byte strings, for kernels."""
        return leaf_widths(self.leaves)

    @cached_property
    def leaf_skips(self) -> _I64:
        """1 for the leaves of the folded column, for kernels."""
        folded = self.leaf_range(self.folded) if self.folded is not None else range(0)
        return _i64(int(i in folded) for i in range(len(self.leaves)))

    @cached_property
    def _record(self) -> Struct:
        """Where kernels put the leaves of a batch, without the batch."""
        return Struct(
            COLUMNS,
            offset=self.leaf_offsets,
            width=self.leaf_widths,
            skip=self.leaf_skips,
            nulls_at=self.nulls_offset,
            null_bytes=self.null_bytes,
            blob_at=self.blob_offset,
            record_bytes=self.record_bytes - self.prefix_bytes,
        )

    def leaf_range(self, column: str) -> range:
        """The leaves of a column, by number."""
        at = 0
        for field, codec in zip(self.schema, self.codecs, strict=True):
            if field.name == column:
                return range(at, at + len(codec.leaves))
            at += len(codec.leaves)
        raise KeyError(column)

    def fields(self, columns: Sequence[str] | None = None) -> Struct:
        """What kernels need to read the leaves of `columns` (all by default) from a record."""
        if columns is None:
            chosen = list(range(len(self.leaves)))
        else:
            chosen = [i for name in columns for i in self.leaf_range(name)]
        selected = set(chosen)
        strings = [i for i, leaf in enumerate(self.leaves) if leaf.is_bytes]
        return Struct(
            FIELDS,
            count=len(chosen),
            offset=_i64(self.offsets[i] for i in chosen),
            width=_i64(self.leaves[i].width_bytes or 4 for i in chosen),
            strings=len(strings),
            string_at=_i64(self.offsets[i] for i in strings),
            string_wanted=_i64(int(i in selected) for i in strings),
            nulls_at=self.nulls_offset,
            null_bytes=self.null_bytes,
            blob_at=self.blob_offset,
            record_bytes=self.record_bytes,
            blank=blank_record(self.record_bytes, self.nulls_offset, self.null_bytes),
        )

    def columns(self, columns: Sequence[pa.Array]) -> PackedColumns:
        """The addresses of a batch's leaves, for kernels that write records."""
        arrays: list[pa.Array] = []
        for codec, column in zip(self.codecs, columns, strict=True):
            arrays += codec.encode(column)
        return leaf_columns(self.leaves, arrays, self._record)

    def select(self, columns: Sequence[str]) -> ColumnReader:
        """A reader of some columns, in the order given."""
        by_name = dict(zip(self.schema.names, self.codecs, strict=True))
        return ColumnReader(tuple(columns), tuple(by_name[name] for name in columns))

    def batch(
        self,
        leaves: Sequence[LeafValues],
        nulls: npt.NDArray[np.uint8],
        seen: npt.NDArray[np.uint8],
    ) -> list[pa.Array]:
        """Arrow columns from all leaves; see `ColumnReader.batch`."""
        return ColumnReader(tuple(self.schema.names), self.codecs).batch(leaves, nulls, seen)


@dataclass(frozen=True)
class ColumnReader:
    """Turns leaves that kernels wrote into Arrow columns."""

    names: tuple[str, ...]
    codecs: tuple[ColumnCodec, ...]

    def batch(
        self,
        leaves: Sequence[LeafValues],
        nulls: npt.NDArray[np.uint8],
        seen: npt.NDArray[np.uint8],
    ) -> list[pa.Array]:
        """Arrow columns from leaves and the null bytes of each row.

        `seen` is the union of all rows' null bytes: most columns have no null and need no look.
        """
        arrays = [_leaf_array(leaf, nulls, seen) for leaf in leaves]
        columns, at = [], 0
        for name, codec in zip(self.names, self.codecs, strict=True):
            part = arrays[at : at + len(codec.leaves)]
            try:
                columns.append(codec.decode(part, len(nulls)))
            except SchemaError as error:
                raise SchemaError(f"column {name!r}: {error.message}", hint=error.hint) from None
            at += len(codec.leaves)
        return columns


class LeafValues(NamedTuple):
    """One leaf of an output: its type, its values (or byte strings' lengths) and their bytes."""

    leaf: Leaf
    length: int
    values: pa.Buffer
    data: pa.Buffer | None
    null_bit: int


class PackedColumns(NamedTuple):
    """Leaf addresses for kernels; `alive` keeps the memory behind them."""

    columns: Struct
    alive: list[Any]


def leaf_widths(leaves: Sequence[Leaf]) -> _I64:
    """Bytes of each leaf, 0 for byte strings, for kernels."""
    return _i64(leaf.width_bytes for leaf in leaves)


def leaf_columns(
    leaves: Sequence[Leaf], arrays: Sequence[pa.Array], record: Struct
) -> PackedColumns:
    """Addresses of leaf arrays; `record` says where kernels that write records put them."""
    table = np.zeros((5, max(len(arrays), 1)), np.int64)
    data, starts, start_width, valid, valid_bit = table
    for i, (array, leaf) in enumerate(zip(arrays, leaves, strict=True)):
        if len(array) == 0:
            continue  # its buffers may be missing
        buffers, first = array.buffers(), array.offset
        if buffers[0] is not None and array.null_count:
            valid[i], valid_bit[i] = buffers[0].address, first
        values = buffers[-1]
        address = values.address if values is not None else 0
        if leaf.is_bytes:
            start_width[i] = 8 if leaf.is_wide else 4
            starts[i] = buffers[1].address + first * start_width[i]
        else:
            address += first * leaf.width_bytes
        data[i] = address
    columns, base, step = record.copy(), table.ctypes.data, table.strides[0]
    columns.count = len(arrays)
    columns.data, columns.starts, columns.start_width = base, base + step, base + 2 * step
    columns.valid, columns.valid_bit = base + 3 * step, base + 4 * step
    return PackedColumns(columns, [table, *arrays])


def _leaf_array(
    values: LeafValues, nulls: npt.NDArray[np.uint8], seen: npt.NDArray[np.uint8]
) -> pa.Array:
    length, bit = values.length, values.null_bit
    null_count = int(count_nulls(nulls, bit)) if (seen[bit >> 3] >> (bit & 7)) & 1 else 0
    validity = None
    if null_count:
        bits = np.empty((length + 7) // 8, np.uint8)
        spread_nulls(nulls, values.null_bit, bits)
        validity = pa.py_buffer(bits)
    if not values.leaf.is_bytes:
        buffers = [validity, values.values]
        return pa.Array.from_buffers(values.leaf.type, length, buffers, null_count)
    if not values.leaf.is_wide and values.data is not None and values.data.size > MOST_NARROW:
        raise SchemaError(
            f"{values.data.size} bytes of text in one batch of results; {values.leaf.type} takes "
            f"{MOST_NARROW}",
            hint="give the join less memory, which makes its batches smaller, or use large_string",
        )
    lengths = np.frombuffer(values.values, np.uint32, length)
    starts = np.zeros(length + 1, np.int64 if values.leaf.is_wide else np.int32)
    np.cumsum(lengths, out=starts[1:])
    buffers = [validity, pa.py_buffer(starts), values.data]
    return pa.Array.from_buffers(values.leaf.type, length, buffers, null_count)


def blank_record(record_bytes: int, nulls_at: int, null_bytes: int) -> npt.NDArray[np.uint8]:
    """A record in which everything is null."""
    record = np.zeros(record_bytes, np.uint8)
    record[nulls_at : nulls_at + null_bytes] = 255
    return record


def _i64(values: Iterable[int]) -> _I64:
    return np.fromiter(values, np.int64)
