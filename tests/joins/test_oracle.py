"""The oracle that judges all joins must itself see every difference."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from semistream.checks.oracle import Oracle

STREAM = pa.table({"k": [1, 2, 2, None, 9], "n": [1.0, float("nan"), None, 4.0, 5.0]})
MASTER = pa.table({"k": [1, 2, 2, None], "label": ["a", "b", None, "d"]})

EXPECTED: dict[str, list[tuple[Any, ...]]] = {
    "inner": [(1, 1.0, "a"), (2, None, "b"), (2, None, None)],
    "left": [(1, 1.0, "a"), (None, 4.0, None), (9, 5.0, None), (2, None, "b"), (2, None, None)],
    "semi": [(1, 1.0), (2, None)],
    "anti": [(None, 4.0), (9, 5.0)],
}


def table(how: str) -> pa.Table:
    """What is expected, with the row whose number is no number."""
    rows: list[tuple[Any, ...]] = [*EXPECTED[how]]
    nan = float("nan")
    if how in ("inner", "left"):
        rows += [(2, nan, "b"), (2, nan, None)]
    if how == "semi":
        rows.append((2, nan))
    names = ["k", "n", "label"][: len(rows[0])]
    types = [pa.int64(), pa.float64(), pa.string()]
    columns = [pa.array(c, t) for c, t in zip(zip(*rows, strict=True), types, strict=False)]
    return pa.table(columns, names=names)


@pytest.fixture
def oracle():
    with Oracle() as made:
        for how in EXPECTED:
            columns = ["label"] if how in ("inner", "left") else []
            made.expect(how, STREAM, MASTER, {"k": "k"}, how, columns)
        yield made


@pytest.mark.parametrize("how", EXPECTED)
def test_the_expected_rows_in_any_order_are_right(how: str, oracle: Oracle) -> None:
    right = table(how)
    oracle.assert_equal(right, how, "same")
    order = list(range(right.num_rows))[::-1]
    oracle.assert_equal(right.take(order), how, "turned around")


@pytest.mark.parametrize("how", EXPECTED)
def test_every_difference_is_seen(how: str, oracle: Oracle) -> None:
    right = table(how)
    rows = list(range(right.num_rows))
    wrong = {
        "lost": right.take(rows[1:]),
        "twice": right.take([*rows, 0]),
        "exchanged": right.take([rows[1], *rows[1:]]),
        "nothing": right.slice(0, 0),
        "null": right.set_column(0, "k", pa.nulls(len(rows), pa.int64())),
    }
    for name, actual in wrong.items():
        with pytest.raises(AssertionError, match=f"{name}: {actual.num_rows} rows"):
            oracle.assert_equal(actual, how, name)


def test_names_on_both_sides_get_a_suffix() -> None:
    stream = pa.table({"k": [1], "v": [2], "v_master": [3]})
    master = pa.table({"k": [1], "v": [4]})
    with Oracle() as made:
        made.expect("x", stream, master, {"k": "k"}, "inner", ["v"])
        right = pa.table({"k": [1], "v": [2], "v_master": [3], "v_master_master": [4]})
        made.assert_equal(right, "x", "suffix")
