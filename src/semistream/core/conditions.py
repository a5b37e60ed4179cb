"""Conditions other than equality: bands, inequalities, and functions of Arrow columns.

    between("price", "low", "high")             low <= price <= high
    compare("temperature", ">", "limit")        temperature > limit
    band("time", "time", width=timedelta(seconds=5))    at most five seconds apart
    predicate(function, stream=["name"], master=["name"])

The first column is the stream's, the others are the master's. Conditions are joined with `&`.
They hold as in SQL: a comparison with a null holds for nobody. Numbers are compared by value, a
number with a float as floats; as in Spark, PostgreSQL and DuckDB, NaN equals itself and lies above
all other numbers. Text is compared by its bytes.
"""

from __future__ import annotations

import datetime as dt
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from semistream.core.errors import OptionError, SchemaError, unknown_name

Offset = int | float | Decimal | dt.timedelta
Flags = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]
Function = Callable[[pa.RecordBatch, pa.RecordBatch], Any]

CLOSED = ("both", "left", "right", "neither")

_WIDE = pa.decimal128(20, 0)
"""Holds every 64-bit number, signed or not."""

_LEAST, _MOST = np.iinfo(np.int64).min, np.iinfo(np.int64).max
_SWAPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}


class Condition(ABC):
    """What must hold between a stream row and a master row for them to be partners."""

    stream_columns: tuple[str, ...]
    """Columns of the stream that are looked at."""

    master_columns: tuple[str, ...]
    """Columns of the master that are looked at."""

    parts: tuple[Condition, ...]
    """Conditions that must all hold; of a simple one, itself."""

    @abstractmethod
    def check(self, stream: pa.Schema, master: pa.Schema) -> None:
        """Raise unless the columns exist and can be compared."""

    @abstractmethod
    def holds(self, stream: pa.RecordBatch, master: pa.RecordBatch) -> Flags:
        """For each pair (row i of both batches) whether the condition holds; null is no."""

    def __and__(self, other: Condition) -> Condition:
        if not isinstance(other, Condition):
            return NotImplemented
        return _All((*self.parts, *other.parts))

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        """Those of its parts that compare two columns; all of them must hold."""
        return tuple(part for part in self.parts if isinstance(part, Comparison))


@dataclass(frozen=True)
class Comparison(Condition):
    """`stream column <sign> master column + offset`."""

    stream: str
    sign: str
    master: str
    offset: Offset | None = None

    SIGNS: ClassVar[dict[str, Callable[[Numbers, Numbers], Flags]]] = {
        "<": operator.lt,
        "<=": operator.le,
        ">": operator.gt,
        ">=": operator.ge,
        "==": operator.eq,
        "!=": operator.ne,
    }

    def __post_init__(self) -> None:
        if self.sign not in self.SIGNS:
            raise unknown_name("comparison", self.sign, self.SIGNS)

    @property
    def stream_columns(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.stream,)

    @property
    def master_columns(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.master,)

    @property
    def parts(self) -> tuple[Condition, ...]:  # type: ignore[override]
        return (self,)

    def __str__(self) -> str:
        offset = "" if self.offset is None else f" + {self.offset}"
        return f"{self.stream} {self.sign} {self.master}{offset}"

    def check(self, stream: pa.Schema, master: pa.Schema) -> None:
        left = _field(stream, self.stream, "stream")
        right = _field(master, self.master, "master")
        common = common_type(left.type, right.type)
        if common is None:
            raise SchemaError(
                f"the stream's column {left.name!r} is {left.type} and the master's "
                f"{right.name!r} is {right.type}: they cannot be compared",
                hint="cast one of them to the type of the other",
            )
        if self.offset is not None:
            _number_of(self.offset, common, str(self))

    def holds(self, stream: pa.RecordBatch, master: pa.RecordBatch) -> Flags:
        left, right = self.numbers(stream.column(self.stream), master.column(self.master))
        return self.SIGNS[self.sign](left.values, right.values) & left.valid & right.valid

    def numbers(self, stream: pa.Array, master: pa.Array) -> tuple[Ordered, Ordered]:
        """Both columns (of any lengths) as numbers whose order decides: stream, master + offset.

        Numbers of two calls must not be mixed: for text and the like they are ranks within a call.
        """
        common = common_type(stream.type, master.type)
        assert common is not None, "checked before"
        left, right = _plain(stream).cast(common), _plain(master).cast(common)
        valid = _flags(left.is_valid()), _flags(right.is_valid())
        kinds = pa.types
        if kinds.is_float64(common):
            x, y = left.fill_null(0.0).to_numpy(), right.fill_null(0.0).to_numpy()
            if self.offset is not None:
                y = y + _number_of(self.offset, common, str(self))
            return Ordered(_of_floats(x), valid[0]), Ordered(_of_floats(y), valid[1])
        if kinds.is_decimal(common) or _is_text(common) or kinds.is_boolean(common):
            return self._ranks(left, right, valid)
        left, right = left.cast(pa.int64()), right.cast(pa.int64())
        x, y = left.fill_null(0).to_numpy(), right.fill_null(0).to_numpy()
        if self.offset is not None:
            offset = int(_number_of(self.offset, common, str(self)))
            if len(y) and not _LEAST <= int(y.min()) + offset <= int(y.max()) + offset <= _MOST:
                # Sums that no 64-bit number holds.
                return self._ranks(left.cast(_WIDE), right.cast(_WIDE), valid, Decimal(offset))
            y = y + offset
        return Ordered(x, valid[0]), Ordered(y, valid[1])

    def _ranks(
        self,
        left: pa.Array,
        right: pa.Array,
        valid: tuple[Flags, Flags],
        offset: Decimal | None = None,
    ) -> tuple[Ordered, Ordered]:
        """Numbers for values that are none themselves: their places in the order of both sides."""
        if offset is None and self.offset is not None:
            offset = _number_of(self.offset, right.type, str(self))
        if offset is not None:
            # As wide as decimals get, so that a sum finds room.
            scale = max(right.type.scale, -int(offset.as_tuple().exponent))
            wide = pa.decimal256(75, scale)
            right = pc.add(right.cast(wide), pa.scalar(offset, wide))
            left = left.cast(right.type)
        ranks = pc.rank(pa.chunked_array([left, right]), tiebreaker="dense").to_numpy()
        numbers = ranks.astype(np.int64)
        return Ordered(numbers[: len(left)], valid[0]), Ordered(numbers[len(left) :], valid[1])

    def key_range(self, stream: pa.Array, key_type: pa.DataType) -> tuple[Numbers, Numbers]:
        """For each stream value the master's values that can be partners: from, to, both included.

        For a master column of an integer or temporal type, as the numbers that Arrow stores. The
        range may be too wide by a value or two, never too narrow; a null's is empty (from > to).
        """
        common = common_type(stream.type, key_type)
        assert common is not None, "checked before"
        column = _plain(stream).cast(common)
        valid = _flags(column.is_valid())
        offset = 0 if self.offset is None else _number_of(self.offset, common, str(self))
        if pa.types.is_float64(common) or pa.types.is_decimal(common):
            numbers = column.cast(pa.float64()).fill_null(0.0).to_numpy() - float(offset)
            # What was rounded on the way gets room for it: `holds` decides.
            finite = np.where(np.isfinite(numbers), np.abs(numbers), 0.0)
            slack = (finite + abs(float(offset))) * 1e-15
            low, high = _to_int64(np.floor(numbers - slack)), _to_int64(np.ceil(numbers + slack))
        else:
            values = _add(column.cast(pa.int64()).fill_null(0).to_numpy(), -int(offset))
            low, high = _scaled(values, common, key_type)
        sign = _SWAPPED[self.sign]
        first, last = np.full(len(valid), _LEAST), np.full(len(valid), _MOST)
        if sign in (">", ">=", "=="):
            first = low
        if sign in ("<", "<=", "=="):
            last = high
        return np.where(valid, first, _MOST), np.where(valid, last, _LEAST)


@dataclass(frozen=True)
class Ordered:
    """Numbers whose order is that of a column's values; those that are not valid are nulls."""

    values: Numbers
    valid: Flags


@dataclass(frozen=True)
class Predicate(Condition):
    """A function of the columns of both sides."""

    function: Function
    stream_columns: tuple[str, ...]
    master_columns: tuple[str, ...]

    @property
    def parts(self) -> tuple[Condition, ...]:  # type: ignore[override]
        return (self,)

    def check(self, stream: pa.Schema, master: pa.Schema) -> None:
        for name in self.stream_columns:
            _field(stream, name, "stream")
        for name in self.master_columns:
            _field(master, name, "master")

    def holds(self, stream: pa.RecordBatch, master: pa.RecordBatch) -> Flags:
        rows = stream.num_rows
        name = getattr(self.function, "__name__", "the function")
        result = self.function(
            stream.select(list(self.stream_columns)), master.select(list(self.master_columns))
        )
        if isinstance(result, pa.ChunkedArray):
            result = result.combine_chunks()
        if isinstance(result, np.ndarray):
            result = pa.array(result)
        if not isinstance(result, pa.BooleanArray):
            came = result.type if isinstance(result, pa.Array) else type(result).__name__
            raise OptionError(
                f"the predicate {name} gave {came}, not an array of booleans",
                hint="compare whole columns, for example with pyarrow.compute.less",
            )
        if len(result) != rows:
            raise OptionError(
                f"the predicate {name} gave {len(result)} flags for {rows} pairs",
                hint="give one for each pair, in their order",
            )
        return _flags(result)


@dataclass(frozen=True)
class _All(Condition):
    parts: tuple[Condition, ...]

    @property
    def stream_columns(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(dict.fromkeys(name for part in self.parts for name in part.stream_columns))

    @property
    def master_columns(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(dict.fromkeys(name for part in self.parts for name in part.master_columns))

    def check(self, stream: pa.Schema, master: pa.Schema) -> None:
        for part in self.parts:
            part.check(stream, master)

    def holds(self, stream: pa.RecordBatch, master: pa.RecordBatch) -> Flags:
        flags = np.ones(stream.num_rows, np.bool_)
        for part in self.parts:
            flags &= part.holds(stream, master)
        return flags


def compare(stream: str, sign: str, master: str, *, offset: Offset | None = None) -> Condition:
    """`stream column <sign> master column (+ offset)`; signs are < <= > >= == !=."""
    return Comparison(stream, sign, master, offset)


def between(stream: str, low: str, high: str, *, closed: str = "both") -> Condition:
    """The stream's column lies between two columns of the master: price bands, address ranges.

    `closed` says which ends belong to the range: "both", "left", "right" or "neither".
    """
    if closed not in CLOSED:
        raise OptionError(f"closed={closed!r} is not a kind of range", hint=f"use one of {CLOSED}")
    return Comparison(stream, ">=" if closed in ("both", "left") else ">", low) & Comparison(
        stream, "<=" if closed in ("both", "right") else "<", high
    )


def band(
    stream: str,
    master: str,
    *,
    width: Offset | None = None,
    below: Offset | None = None,
    above: Offset | None = None,
) -> Condition:
    """The stream's value is at most so far from the master's; the ends belong to the band.

    `width` is for both directions; or `below` and `above` say how far the stream's value may lie
    below and above the master's. Times take a `datetime.timedelta`.
    """
    if (width is None) == (below is None and above is None):
        raise OptionError(
            "a band needs either width= or below= and above=", hint="for example width=5"
        )
    if width is not None:
        below = above = width
    zero: Any = dt.timedelta() if dt.timedelta in (type(below), type(above)) else 0
    down, up = (zero if side is None else side for side in (below, above))
    for side in (down, up):
        if side < zero:
            raise OptionError(f"a band cannot reach {side} far", hint="give a distance above zero")
    return Comparison(stream, ">=", master, -down) & Comparison(stream, "<=", master, up)


def predicate(function: Function, *, stream: Sequence[str], master: Sequence[str]) -> Condition:
    """A function of two record batches, the stream's and the master's, to an array of booleans.

    Row i of both batches is a pair; the i-th flag says whether they are partners, null meaning no.
    The batches have the columns named here. The function is called with many pairs at once, any
    number of times and in any order, so it must depend on the pair alone.
    """
    if not callable(function):
        raise OptionError(
            f"the predicate is a {type(function).__name__}, not a function",
            hint="write predicate(lambda stream, master: ..., stream=[...], master=[...])",
        )
    if isinstance(stream, str) or isinstance(master, str):
        raise OptionError("the columns of a predicate are lists", hint='write stream=["price"]')
    return Predicate(function, tuple(stream), tuple(master))


def key_range(
    condition: Condition, column: str, key_type: pa.DataType, stream: pa.RecordBatch
) -> tuple[Numbers, Numbers] | None:
    """Which values of a master column can hold for each stream row: from, to, both included.

    Joins that find rows by an ordered index read only these. None if the condition says nothing
    about that column. Within the range the condition may still not hold: ask `holds`.
    """
    ranges = [
        part.key_range(stream.column(part.stream), key_type)
        for part in condition.comparisons
        if part.master == column and part.sign != "!="
    ]
    if not ranges:
        return None
    low = np.maximum.reduce([low for low, _ in ranges])
    return low, np.minimum.reduce([high for _, high in ranges])


def _field(schema: pa.Schema, name: str, side: str) -> pa.Field:
    if name not in schema.names:
        raise unknown_name(f"column in the {side}", name, schema.names)
    return schema.field(name)


def _flags(array: pa.Array) -> Flags:
    flags: Flags = array.fill_null(False).to_numpy(zero_copy_only=False)
    return flags


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


def _is_text(type_: pa.DataType) -> bool:
    return bool(pa.types.is_large_string(type_) or pa.types.is_large_binary(type_))


def common_type(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """The type in which values of both are compared, or None if they cannot be."""
    kinds = pa.types
    both = [type_.value_type if kinds.is_dictionary(type_) else type_ for type_ in (left, right)]
    if all(_is_number(type_) for type_ in both):
        return _common_number(both)
    if all(_is_string(type_) for type_ in both):
        return pa.large_string()
    if all(_is_binary(type_) for type_ in both):
        return pa.large_binary()
    if all(kinds.is_boolean(type_) for type_ in both):
        return pa.bool_()
    if all(kinds.is_time(type_) for type_ in both):
        return pa.time64("ns" if "ns" in (t.unit for t in both) else "us")
    if all(kinds.is_duration(type_) for type_ in both):
        return pa.duration("ns" if "ns" in (t.unit for t in both) else "us")
    if all(kinds.is_date(type_) for type_ in both):
        return pa.timestamp("us")
    if all(kinds.is_date(type_) or kinds.is_timestamp(type_) for type_ in both):
        stamps = [type_ for type_ in both if kinds.is_timestamp(type_)]
        if len({stamp.tz is None for stamp in stamps}) > 1:
            return None
        if len(stamps) == 1 and stamps[0].tz is not None:
            return None
        unit = "ns" if "ns" in (stamp.unit for stamp in stamps) else "us"
        return pa.timestamp(unit, None if stamps[0].tz is None else "UTC")
    return None


def _is_number(type_: pa.DataType) -> bool:
    kinds = pa.types
    return bool(kinds.is_integer(type_) or kinds.is_floating(type_) or kinds.is_decimal(type_))


def _is_string(type_: pa.DataType) -> bool:
    kinds = pa.types
    return bool(
        kinds.is_string(type_) or kinds.is_large_string(type_) or kinds.is_string_view(type_)
    )


def _is_binary(type_: pa.DataType) -> bool:
    kinds = pa.types
    return bool(
        kinds.is_binary(type_)
        or kinds.is_large_binary(type_)
        or kinds.is_binary_view(type_)
        or (kinds.is_fixed_size_binary(type_) and not kinds.is_decimal(type_))
    )


def _common_number(both: Sequence[pa.DataType]) -> pa.DataType:
    kinds = pa.types
    if any(kinds.is_floating(type_) for type_ in both):
        return pa.float64()
    if any(kinds.is_decimal(type_) or kinds.is_uint64(type_) for type_ in both):
        digits = [
            (type_.precision - type_.scale, type_.scale) if kinds.is_decimal(type_) else (20, 0)
            for type_ in both
        ]
        scale = max(scale for _, scale in digits)
        whole = max(whole for whole, _ in digits)
        wide = pa.decimal256 if whole + scale > 38 else pa.decimal128
        return wide(min(whole + scale, 76), scale)
    return pa.int64()


def _number_of(offset: Offset, common: pa.DataType, what: str) -> Any:
    """An offset as it is added to values of the type in which columns are compared."""
    kinds = pa.types
    is_time = kinds.is_temporal(common)
    if isinstance(offset, bool) or is_time != isinstance(offset, dt.timedelta):
        wanted = "a datetime.timedelta" if is_time else "a number"
        raise OptionError(f"{what}: the offset is {offset!r}", hint=f"it must be {wanted} here")
    if isinstance(offset, dt.timedelta):
        micros = offset // dt.timedelta(microseconds=1)
        return micros * 1000 if common.unit == "ns" else micros
    if kinds.is_float64(common):
        return float(offset)
    if kinds.is_decimal(common):
        return Decimal(str(offset)) if isinstance(offset, float) else Decimal(offset)
    if kinds.is_integer(common):
        if offset != int(offset):
            raise OptionError(
                f"{what}: the offset is {offset!r} and both columns are integers",
                hint="give a whole number, or cast a column to a float",
            )
        return int(offset)
    raise OptionError(f"{what}: nothing can be added to {common}", hint="leave the offset out")


def _add(values: Numbers, offset: int) -> Numbers:
    """Values plus an offset that stops at the ends of what 64 bits hold, instead of wrapping."""
    if offset == 0:
        return values
    if not _LEAST <= offset <= _MOST:
        return np.full(len(values), _MOST if offset > 0 else _LEAST)
    limit = _MOST - offset if offset > 0 else _LEAST - offset
    beyond = values > limit if offset > 0 else values < limit
    return np.where(beyond, _MOST if offset > 0 else _LEAST, values + np.where(beyond, 0, offset))


def _of_floats(values: npt.NDArray[np.float64]) -> Numbers:
    """Integers in the order of floats: -0.0 is 0.0, and NaN lies above all."""
    values = np.where(np.isnan(values), np.nan, values + 0.0)
    bits = values.view(np.int64)
    return np.where(bits < 0, bits ^ _MOST, bits)


def _to_int64(values: npt.NDArray[np.float64]) -> Numbers:
    """Floats without a fraction as integers; what lies beyond stops at the ends, NaN at the top."""
    values = np.where(np.isnan(values), np.inf, values)
    inside = (values >= -(2.0**63)) & (values < 2.0**63)
    whole = np.where(inside, values, 0.0).astype(np.int64)
    return np.where(inside, whole, np.where(values > 0, _MOST, _LEAST))


_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def _scaled(values: Numbers, common: pa.DataType, key: pa.DataType) -> tuple[Numbers, Numbers]:
    """Values of the common type in the key's unit: the next at or below, the next at or above."""
    kinds = pa.types
    if kinds.is_integer(key):
        return values, values
    if kinds.is_date32(key):
        divisor = 86_400 * _PER_SECOND[common.unit]
    elif kinds.is_date64(key):
        divisor = _PER_SECOND[common.unit] // 1000
    else:
        divisor = _PER_SECOND[common.unit] // _PER_SECOND[key.unit]
    below = values // divisor
    return below, below + (values % divisor != 0)
