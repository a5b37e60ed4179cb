"""From key columns to key64, the 64-bit number by which rows are ordered and found.

A key of one integer, date, time or timestamp column is its own number: pages then lie in the order
of the key and ranges work. Every other key (strings, decimals, binary, several columns) is hashed;
the real columns are compared after the match. A key with a null in it has no key64 and no partner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from semistream.core.errors import KeyTypeError, OptionError, unknown_name
from semistream.kernels.hashing import hash_rows
from semistream.kernels.jit import read_only
from semistream.kernels.rows import pack_records, packed_size
from semistream.store.layout import RowLayout

_SIGN = np.int64(-(2**63))


@dataclass(frozen=True)
class Keys:
    """key64 of some rows; `valid` is 0 where the key has a null. Neither can be written to."""

    key64: npt.NDArray[np.int64]
    valid: npt.NDArray[np.uint8]
    nulls: int


@dataclass(frozen=True)
class KeySpec:
    """The key of a master: its columns, and how they become key64.

    `hash_bits` below 64 makes different keys collide, which tests use to prove that matches are
    verified.
    """

    schema: pa.Schema
    hash_bits: int = 64

    @classmethod
    def of(cls, schema: pa.Schema, columns: Sequence[str], *, hash_bits: int = 64) -> KeySpec:
        """The key made of these columns of a table."""
        if not columns:
            raise OptionError("the key names no column", hint='write key="customer_id"')
        if len(set(columns)) != len(columns):
            raise OptionError(
                f"the key names a column twice: {', '.join(columns)}", hint="name each once"
            )
        if not 1 <= hash_bits <= 64:
            raise OptionError(
                f"hash_bits={hash_bits} is not between 1 and 64", hint="leave it out but for tests"
            )
        fields = []
        for name in columns:
            found = schema.get_all_field_indices(name)
            if not found:
                raise unknown_name("key column", name, schema.names)
            if len(found) > 1:
                raise KeyTypeError(
                    f"the table has {len(found)} columns named {name!r}", hint="rename one of them"
                )
            field = schema.field(found[0])
            fields.append(field.with_type(_key_type(field)))
        return cls(pa.schema(fields), hash_bits)

    @property
    def names(self) -> list[str]:
        """The key's columns."""
        return list(self.schema.names)

    @cached_property
    def _fields(self) -> tuple[pa.Field, ...]:
        # Arrow makes a field anew each time that it is asked for.
        return tuple(self.schema)

    @cached_property
    def is_number(self) -> bool:
        """Whether key64 is the key itself, so that order and ranges hold."""
        return len(self.schema) == 1 and _number_type(self.schema.field(0).type) is not None

    @cached_property
    def _layout(self) -> RowLayout:
        """How a key is written before it is hashed."""
        return RowLayout.of(self.schema, prefix=False)

    @property
    def folded(self) -> str | None:
        """The column that need not be stored beside key64, if there is one."""
        # Unsigned 64-bit keys are shifted to keep their order, so their bytes are not key64's.
        if self.is_number and not pa.types.is_uint64(self.schema.field(0).type):
            return str(self.schema.field(0).name)
        return None

    def cast(self, columns: Sequence[pa.Array], names: Sequence[str]) -> list[pa.Array]:
        """A stream's key columns in the master's types; an error names the one that cannot be."""
        cast = []
        for field, column, name in zip(self._fields, columns, names, strict=True):
            if column.type != field.type:
                check_key_type(name, column.type, field)
                column = _cast_key(column, field.type)
            cast.append(column)
        return cast

    def keys(self, columns: Sequence[pa.Array]) -> Keys:
        """key64 of rows, from key columns of the master's types."""
        length = len(columns[0])
        valid, nulls = _validity(columns, length)
        if self.is_number:
            return Keys(read_only(_numbers(columns[0])), valid, nulls)
        packed = self._layout.columns(columns)
        size = packed_size(packed.columns.kernel, 0, length)
        data, starts = np.empty(size, np.uint8), np.empty(length + 1, np.int64)
        pack_records(packed.columns.kernel, 0, length, starts, data)
        key64 = np.empty(length, np.int64)
        hash_rows(data, starts, self.hash_bits, key64)
        return Keys(read_only(key64), valid, nulls)

    def describe(self) -> str:
        """The key for people: `customer_id int64`, or `hash of (source string, id int64)`."""
        listed = ", ".join(f"{field.name} {field.type}" for field in self.schema)
        return listed if self.is_number else f"hash of ({listed})"


def check_key_type(name: str, came: pa.DataType, wanted: pa.Field) -> None:
    """Raise unless a stream column of type `came` can be compared with the master's key column."""
    if pa.types.is_dictionary(came):
        came = came.value_type
    if _family(came) == _family(wanted.type) is not None or came == wanted.type:
        return
    raise KeyTypeError(
        f"the stream's column {name!r} is {came} and the master's key {wanted.name!r} is "
        f"{wanted.type}: they cannot be compared",
        hint=f"cast {name!r} to {wanted.type}, or rebuild the master with that type",
    )


def _family(type_: pa.DataType) -> str | None:
    kinds = pa.types
    if kinds.is_integer(type_):
        return "integer"
    if kinds.is_string(type_) or kinds.is_large_string(type_) or kinds.is_string_view(type_):
        return "string"
    if (
        kinds.is_binary(type_)
        or kinds.is_large_binary(type_)
        or kinds.is_binary_view(type_)
        or kinds.is_fixed_size_binary(type_)
    ):
        return "binary"
    if kinds.is_decimal(type_):
        return "decimal"
    if kinds.is_date(type_):
        return "date"
    if kinds.is_timestamp(type_):
        return f"timestamp {'with' if type_.tz else 'without'} zone"
    if kinds.is_time(type_):
        return "time"
    if kinds.is_boolean(type_):
        return "boolean"
    return None


def _cast_key(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    """A key column in the master's type; null where the value has no place in it.

    A value that the master's type cannot hold has no partner. It must not match another one by
    wrapping around or being rounded, nor stop the stream: like a null, it stays unmatched.
    """
    column = _plain(column)
    if column.type == wanted:
        return column
    kinds = pa.types
    if kinds.is_fixed_size_binary(wanted) and not kinds.is_decimal(wanted):
        column = column.cast(pa.binary())
        return _only(column, pc.equal(pc.binary_length(column), wanted.byte_width)).cast(wanted)
    try:
        return column.cast(wanted)
    except pa.ArrowInvalid:
        pass
    if kinds.is_integer(wanted):
        (low, high), (least, most) = _range(wanted), _range(column.type)
        fits = pc.and_(
            pc.greater_equal(column, pa.scalar(max(low, least), column.type)),
            pc.less_equal(column, pa.scalar(min(high, most), column.type)),
        )
        return _only(column, fits).cast(wanted)
    if kinds.is_decimal(wanted):
        column = _only_below(column, wanted.precision - wanted.scale)
    forced = column.cast(wanted, safe=False)
    return _only(forced, pc.equal(forced.cast(column.type, safe=False), column))


def _plain(column: pa.Array) -> pa.Array:
    """Without a dictionary or views, for which Arrow has few functions."""
    kinds = pa.types
    if kinds.is_dictionary(column.type):
        return _plain(column.dictionary).take(column.indices)
    if kinds.is_string_view(column.type):
        return column.cast(pa.large_string())
    if kinds.is_binary_view(column.type):
        return column.cast(pa.large_binary())
    return column


def _only(column: pa.Array, fits: pa.Array) -> pa.Array:
    return pc.if_else(fits, column, pa.scalar(None, column.type))


def _only_below(column: pa.Array, digits: int) -> pa.Array:
    """Decimals with at most this many digits before the point."""
    type_ = column.type
    if type_.precision - type_.scale <= digits:
        return column
    if type_.bit_width < 128:
        type_ = pa.decimal128(type_.precision, type_.scale)
        column = column.cast(type_)
    limit = pa.scalar(Decimal(10) ** max(digits, 0), type_)
    return _only(column, pc.less(pc.abs(column), limit))


def _range(type_: pa.DataType) -> tuple[int, int]:
    if pa.types.is_signed_integer(type_):
        return -(2 ** (type_.bit_width - 1)), 2 ** (type_.bit_width - 1) - 1
    return 0, 2**type_.bit_width - 1


def _key_type(field: pa.Field) -> pa.DataType:
    """The type in which a key column is stored: wide forms of the same values are made one."""
    type_ = field.type
    kinds = pa.types
    if kinds.is_dictionary(type_):
        type_ = type_.value_type
    if kinds.is_large_string(type_) or kinds.is_string_view(type_):
        return pa.string()
    if kinds.is_large_binary(type_) or kinds.is_binary_view(type_):
        return pa.binary()
    if _family(type_) is None:
        raise KeyTypeError(
            f"column {field.name!r} of type {type_} cannot be a key",
            hint="use integers, strings, dates, times, timestamps, decimals, booleans or binary, "
            "or cast it to one of them",
        )
    return type_


def _number_type(type_: pa.DataType) -> np.dtype[np.generic] | None:
    kinds = pa.types
    if kinds.is_integer(type_):
        return np.dtype(str(type_))  # Arrow and NumPy call integers the same
    if kinds.is_date32(type_) or kinds.is_time32(type_):
        return np.dtype(np.int32)
    if kinds.is_date64(type_) or kinds.is_timestamp(type_) or kinds.is_time64(type_):
        return np.dtype(np.int64)
    return None


def _numbers(column: pa.Array) -> npt.NDArray[np.int64]:
    dtype = _number_type(column.type)
    assert dtype is not None
    if len(column) == 0:
        return np.empty(0, np.int64)
    data = column.buffers()[1]
    values = np.frombuffer(data, dtype, len(column), column.offset * dtype.itemsize)
    if dtype == np.uint64:
        return values.view(np.int64) ^ _SIGN
    return values if dtype == np.int64 else values.astype(np.int64)


def _validity(columns: Sequence[pa.Array], length: int) -> tuple[npt.NDArray[np.uint8], int]:
    nulls = [column for column in columns if column.null_count]
    if not nulls:
        return read_only(np.ones(length, np.uint8)), 0
    valid = nulls[0].is_valid()
    for column in nulls[1:]:
        valid = pc.and_(valid, column.is_valid())
    flags = valid.cast(pa.uint8()).to_numpy()
    return read_only(flags), int(length - flags.sum())
