"""Conditions on columns: what holds, and which keys can hold at all."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semistream.core.conditions import (
    band,
    between,
    common_type,
    compare,
    key_range,
    predicate,
)

LARGE = 2**63 - 1
WHOLE = st.one_of(st.none(), st.integers(-5, 5), st.sampled_from([LARGE, -LARGE - 1, LARGE - 1]))
REAL = st.one_of(st.none(), st.floats(-9, 9), st.sampled_from([float("inf"), float("nan"), -0.0]))
SIGNS = st.sampled_from(["<", "<=", ">", ">=", "==", "!="])


def truth(left: Any, sign: str, right: Any) -> bool:
    if left is None or right is None:
        return False
    # NaN equals itself and lies above all others.
    one, other = ((math.isnan(value), 0 if math.isnan(value) else value) for value in (left, right))
    return {
        "<": one < other,
        "<=": one <= other,
        ">": one > other,
        ">=": one >= other,
        "==": one == other,
        "!=": one != other,
    }[sign]


@given(st.lists(st.tuples(WHOLE, WHOLE), min_size=1), SIGNS, st.integers(-3, 3))
def test_integers_with_an_offset_do_not_wrap(pairs: list[Any], sign: str, offset: int) -> None:
    stream = pa.record_batch({"s": pa.array([s for s, _ in pairs], pa.int64())})
    master = pa.record_batch({"m": pa.array([m for _, m in pairs], pa.int64())})
    flags = compare("s", sign, "m", offset=offset).holds(stream, master)
    for flag, (s, m) in zip(flags.tolist(), pairs, strict=True):
        assert flag == truth(s, sign, None if m is None else m + offset)


@given(st.lists(st.tuples(REAL, REAL), min_size=1), SIGNS)
def test_floats(pairs: list[Any], sign: str) -> None:
    stream = pa.record_batch({"s": pa.array([s for s, _ in pairs], pa.float64())})
    master = pa.record_batch({"m": pa.array([m for _, m in pairs], pa.float64())})
    flags = compare("s", sign, "m").holds(stream, master)
    assert flags.tolist() == [truth(s, sign, m) for s, m in pairs]


def _is_within(condition: Any, stream: pa.Array, keys: pa.Array) -> None:
    """Wherever the condition holds, the key is in the range; nothing far away is."""
    batch = pa.record_batch({"s": stream})
    found = key_range(condition, "m", keys.type, batch)
    assert found is not None
    numbers = keys.cast(pa.int32() if pa.types.is_date32(keys.type) else pa.int64()).to_pylist()
    for i, (low, high) in enumerate(zip(*(side.tolist() for side in found), strict=True)):
        one = pa.record_batch({"s": pa.concat_arrays([stream.slice(i, 1)] * len(keys))})
        flags = condition.holds(one, pa.record_batch({"m": keys}))
        inside = [low <= number <= high for number in numbers]
        assert all(within for within, holds in zip(inside, flags, strict=True) if holds)
        # Too wide by a value or two at most.
        assert sum(inside) <= flags.sum() + 4


@given(st.lists(WHOLE, min_size=1, max_size=6), SIGNS.filter(lambda sign: sign != "!="))
def test_key_range_of_integers(values: list[Any], sign: str) -> None:
    keys = pa.array([-LARGE - 1, *range(-9, 10), LARGE - 1, LARGE])
    stream = pa.array(values, pa.int64())
    _is_within(compare("s", sign, "m", offset=2), stream, keys)
    _is_within(band("s", "m", width=3), stream, keys)


@given(st.lists(REAL, min_size=1, max_size=6), SIGNS.filter(lambda sign: sign != "!="))
def test_key_range_of_floats(values: list[Any], sign: str) -> None:
    _is_within(compare("s", sign, "m"), pa.array(values, pa.float64()), pa.array(range(-12, 13)))


@given(st.lists(st.integers(-400, 400), min_size=1, max_size=6))
def test_key_range_of_times(hours: list[int]) -> None:
    start = dt.datetime(2026, 1, 1)
    stream = pa.array([None, *(start + dt.timedelta(hours=hour) for hour in hours)])
    days = pa.array([(start + dt.timedelta(days=day)).date() for day in range(-20, 20)])
    _is_within(band("s", "m", width=dt.timedelta(days=2)), stream, days)
    _is_within(compare("s", "<", "m"), stream, days)
    _is_within(compare("s", ">=", "m"), stream, days.cast(pa.timestamp("s")))


def test_key_range_says_when_it_knows_nothing() -> None:
    stream = pa.record_batch({"s": [1]})
    rest = predicate(lambda s, m: np.ones(1, bool), stream=["s"], master=["m"])
    for condition in (compare("s", "<", "other"), compare("s", "!=", "m"), rest):
        assert key_range(condition, "m", pa.int64(), stream) is None
    low, high = key_range(between("s", "m", "x") & rest, "m", pa.int64(), stream) or ([], [])
    assert (low[0], high[0]) == (-LARGE - 1, 1)


@pytest.mark.parametrize(
    ("left", "right", "common"),
    [
        (pa.int8(), pa.int64(), pa.int64()),
        (pa.uint64(), pa.int64(), pa.decimal128(20, 0)),
        (pa.int32(), pa.float32(), pa.float64()),
        (pa.decimal128(9, 2), pa.int8(), pa.decimal128(22, 2)),
        (pa.string(), pa.large_string(), pa.large_string()),
        (pa.dictionary(pa.int8(), pa.string()), pa.string(), pa.large_string()),
        (pa.date32(), pa.timestamp("ns"), pa.timestamp("ns")),
        (pa.timestamp("s", "UTC"), pa.timestamp("us", "CET"), pa.timestamp("us", "UTC")),
        (pa.timestamp("s", "UTC"), pa.timestamp("us"), None),
        (pa.date32(), pa.timestamp("us", "UTC"), None),
        (pa.string(), pa.int64(), None),
        (pa.bool_(), pa.int8(), None),
    ],
)
def test_common_types(left: pa.DataType, right: pa.DataType, common: pa.DataType | None) -> None:
    assert common_type(left, right) == common
    assert common_type(right, left) == common


def test_decimals_are_exact() -> None:
    stream = pa.record_batch({"s": pa.array([Decimal("0.30"), Decimal("0.31")])})
    master = pa.record_batch({"m": pa.array([Decimal("0.1"), Decimal("0.1")])})
    assert compare("s", "<=", "m", offset=0.2).holds(stream, master).tolist() == [True, False]
