"""Keys: which columns can be one, how they become key64, and what a stream may bring instead."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import semistream as ss
from semistream.core.errors import KeyTypeError, OptionError, UnknownNameError
from semistream.store.inspect import page_table
from semistream.store.keys import KeySpec
from tests.examples import examples

DAY = dt.datetime(2026, 1, 31, 12, 30)
INTEGERS = {
    f"{sign}int{width}": getattr(pa, f"{sign}int{width}")()
    for sign in ("", "u")
    for width in (8, 16, 32, 64)
}


def spread(type_: pa.DataType) -> list[int]:
    """Numbers over the whole range of an integer type."""
    signed, width = pa.types.is_signed_integer(type_), type_.bit_width
    low, high = (-(2 ** (width - 1)), 2 ** (width - 1) - 1) if signed else (0, 2**width - 1)
    step = max((high - low) // 3000, 1)
    return sorted({*range(low, high, step), high, 0, 1})


KEYS: dict[str, pa.Array] = {
    **{name: pa.array(spread(type_), type_) for name, type_ in INTEGERS.items()},
    "bool": pa.array([True, False]),
    "string": pa.array(["", "a", "b", "é", "a" * 300, "A"]),
    "large_string": pa.array(["", "a", "b"], pa.large_string()),
    "string_view": pa.array(["", "a", "longer than twelve bytes"], pa.string_view()),
    "binary": pa.array([b"", b"\0", b"\0\0", b"abc"]),
    "large_binary": pa.array([b"", b"\0"], pa.large_binary()),
    "binary_view": pa.array([b"", b"\0"], pa.binary_view()),
    "fixed binary": pa.array([b"abc", b"abd", b"\0\0\0"], pa.binary(3)),
    "decimal128": pa.array([Decimal("1.20"), Decimal("-1.20"), Decimal(0)], pa.decimal128(9, 2)),
    "decimal32": pa.array([Decimal("1.20"), Decimal("-1.20"), Decimal(0)], pa.decimal32(9, 2)),
    "decimal256": pa.array([Decimal("1.20"), Decimal("-1.20")], pa.decimal256(60, 2)),
    "date32": pa.array([(DAY - dt.timedelta(days=i * 50)).date() for i in range(1000)]),
    "date64": pa.array([DAY.date(), dt.date(1900, 1, 1)], pa.date64()),
    "time32": pa.array([0, 1, 86_399], pa.time32("s")),
    "time64": pa.array([0, 1, 86_399_999_999], pa.time64("us")),
    "timestamp": pa.array([DAY - dt.timedelta(hours=i * i) for i in range(1000)]),
    "timestamp with zone": pa.array([DAY.replace(tzinfo=dt.UTC)], pa.timestamp("ms", "UTC")),
    "dictionary": pa.array(["x", "y", "z"]).dictionary_encode(),
    "dictionary of views": pa.DictionaryArray.from_arrays(
        pa.array([0, 1], pa.int8()), pa.array(["x", "y"], pa.string_view())
    ),
}
NUMBERS = [*INTEGERS, "date32", "date64", "time32", "time64", "timestamp", "timestamp with zone"]


def with_null(array: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(array.type):
        indices = pa.concat_arrays([array.indices, pa.nulls(1, array.indices.type)])
        return pa.DictionaryArray.from_arrays(indices, array.dictionary)
    return pa.concat_arrays([array, pa.nulls(1, array.type)])


def plain(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    if pa.types.is_temporal(column.type) and column.type.bit_width == 64:
        column = column.cast(pa.int64())  # Python's have fewer years, and no nanoseconds
    return list(column.to_pylist())


def joined(stream: pa.Array, path: Path, on: str = "k", **options: Any) -> dict[Any, Any]:
    """Partners by the number of the stream's row."""
    table = pa.table({on: stream, "row": range(len(stream))})
    result = ss.join(table, path, on=on, how="left", memory="2MB", **options).read_all()
    assert result.num_rows == len(stream)
    assert result.column(on).type == stream.type
    values = plain(stream)
    rows = result.column("row").to_pylist()
    assert plain(result.column(on)) == [values[row] for row in rows], "keys come out unchanged"
    return dict(zip(rows, result.column("v").to_pylist(), strict=True))


@pytest.mark.parametrize("name", KEYS)
def test_rows_are_found_by_a_key_of_every_type(tmp_path: Path, name: str) -> None:
    keys = with_null(KEYS[name])
    count = len(keys) - 1
    table = pa.table({"k": keys, "v": range(count + 1)})
    # The even rows are the master's.
    even = pa.concat_tables([table.slice(i, 1) for i in range(0, count, 2)] + [table.slice(count)])
    ss.build_master(tmp_path / "m", even, "k")
    master = ss.open_master(tmp_path / "m")
    assert master.manifest.null_keys == 1
    assert master.rows == len(even) - 1
    assert master.spec.is_number == (name in NUMBERS)
    wanted = {i: i if i % 2 == 0 and i < count else None for i in range(count + 1)}
    assert joined(keys, tmp_path / "m") == wanted


@pytest.mark.parametrize("name", NUMBERS)
def test_pages_lie_in_the_order_of_a_number_key(tmp_path: Path, name: str) -> None:
    order = np.random.default_rng(5).permutation(len(KEYS[name]))
    keys = KEYS[name].take(pa.array(order))
    ss.build_master(tmp_path / "m", pa.table({"k": keys, "v": ["x" * 50] * len(keys)}), "k")
    master = ss.open_master(tmp_path / "m")
    pages = [page_table(master, number).column("k") for number in range(master.pages)]
    assert master.pages > 1 or len(keys) < 1000
    stored = [value for page in pages for value in page.to_pylist()]
    assert stored == sorted(keys.to_pylist())
    assert stored[-1] == max(stored), "also where an unsigned key is above the signed ones"


def test_unsigned_keys_above_the_signed_range_are_found(tmp_path: Path) -> None:
    keys = [0, 1, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 1]
    table = pa.table({"k": pa.array(keys, pa.uint64()), "v": range(len(keys))})
    ss.build_master(tmp_path / "m", table, "k")
    asked = pa.array([*keys, 2**63 + 2, 2], pa.uint64())
    assert list(joined(asked, tmp_path / "m").values()).count(None) == 2
    signed = pa.array([-1, 2**63 - 1, -(2**63)], pa.int64())
    assert joined(signed, tmp_path / "m") == {0: None, 1: 2, 2: None}, "no wrapping around"


def test_only_one_key_column_of_numbers_is_folded_into_key64() -> None:
    schema = pa.schema({"a": pa.int64(), "b": pa.uint64(), "s": pa.string()})
    assert KeySpec.of(schema, ["a"]).folded == "a"
    assert KeySpec.of(schema, ["b"]).folded is None
    assert KeySpec.of(schema, ["b"]).is_number
    assert not KeySpec.of(schema, ["a", "b"]).is_number
    assert KeySpec.of(schema, ["a"]).describe() == "a int64"
    assert KeySpec.of(schema, ["s", "a"]).describe() == "hash of (s string, a int64)"


# ---------------------------------------------------------------------------- several columns


@pytest.mark.parametrize("bits", [64, 8, 1])
def test_keys_of_several_columns_are_compared_column_by_column(tmp_path: Path, bits: int) -> None:
    pairs = [("a", "bc"), ("ab", "c"), ("abc", ""), ("", "abc"), ("a", None), (None, "a")]
    table = pa.table(
        {
            "x": [a for a, _ in pairs],
            "n": pa.array([1] * len(pairs), pa.int16()),
            "y": [b for _, b in pairs],
            "v": range(len(pairs)),
        }
    )
    ss.build_master(tmp_path / "m", table, ["y", "n", "x"], hash_bits=bits)
    master = ss.open_master(tmp_path / "m")
    assert master.manifest.null_keys == 2
    stream = table.append_column("other", table.column("v")).drop_columns(["v"])
    on = {"x": "x", "y": "y", "n": "n"}
    result = ss.join(stream, master, on=on, how="left", memory="2MB").read_all()
    found = dict(
        zip(result.column("other").to_pylist(), result.column("v").to_pylist(), strict=True)
    )
    assert found == {0: 0, 1: 1, 2: 2, 3: 3, 4: None, 5: None}
    swapped = stream.rename_columns(["y", "n", "x", "other"])
    result = ss.join(swapped, master, on=["x", "n", "y"], how="semi", memory="2MB").read_all()
    assert sorted(result.column("other").to_pylist()) == [2, 3], "the two that mirror each other"


@pytest.mark.parametrize("bits", [2, 7])
def test_colliding_hashes_are_told_apart(tmp_path: Path, bits: int) -> None:
    keys = [f"key {i}" for i in range(2000)]
    ss.build_master(tmp_path / "m", pa.table({"k": keys, "v": range(2000)}), "k", hash_bits=bits)
    master = ss.open_master(tmp_path / "m")
    assert master.manifest.keys <= 2**bits
    assert master.manifest.longest_run >= 2000 // 2**bits
    asked = [f"key {i}" for i in range(1000, 3000)]
    found = joined(pa.array(asked), tmp_path / "m")
    assert found == {i: i + 1000 if i < 1000 else None for i in range(2000)}


# ---------------------------------------------------------------- other types in the stream


D = Decimal
CASTS: dict[str, tuple[pa.Array, pa.Array, list[int | None]]] = {
    # The master's keys, the stream's, and for each of these the partner's number.
    "narrow in wide": (pa.array([1, 2]), pa.array([2, 3], pa.int8()), [1, None]),
    "wide in narrow": (
        pa.array([1, -1, 127], pa.int8()),
        pa.array([127, 383, 2**40, -1]),
        [2, None, None, 1],
    ),
    "unsigned in signed": (
        pa.array([1, -1], pa.int64()),
        pa.array([1, 2**64 - 1], pa.uint64()),
        [0, None],
    ),
    "signed in unsigned": (
        pa.array([1, 255], pa.uint8()),
        pa.array([-1, 255], pa.int16()),
        [None, 1],
    ),
    "large string": (pa.array(["a", "b"]), pa.array(["b", "c"], pa.large_string()), [1, None]),
    "view": (pa.array(["a", "b"]), pa.array(["b", "c"], pa.string_view()), [1, None]),
    "dictionary": (
        pa.array(["a", "b"]),
        pa.array(["b", "c", None, "b"]).dictionary_encode(),
        [1, None, None, 1],
    ),
    "binary of any length in fixed": (
        pa.array([b"abc", b"abd"], pa.binary(3)),
        pa.array([b"abd", b"ab", b"abcd", b""]),
        [1, None, None, None],
    ),
    "fixed binary in another": (
        pa.array([b"abc"], pa.binary(3)),
        pa.array([b"ab"], pa.binary(2)),
        [None],
    ),
    "fixed binary in any": (
        pa.array([b"abc"]),
        pa.array([b"abc", b"abd"], pa.binary(3)),
        [0, None],
    ),
    "binary view in fixed": (
        pa.array([b"abc"], pa.binary(3)),
        pa.array([b"abc", b"c"], pa.binary_view()),
        [0, None],
    ),
    "decimals of another scale": (
        pa.array([D("1.20"), D("3.00")]),
        pa.array([D("1.200"), D("1.201"), D("3.000")]),
        [0, None, 1],
    ),
    "decimals too large": (
        pa.array([D("1.2")], pa.decimal128(2, 1)),
        pa.array([D("1.2"), D("99999.9")], pa.decimal128(9, 1)),
        [0, None],
    ),
    "decimals too large for 32 bits": (
        pa.array([D("1.20")], pa.decimal32(5, 2)),
        pa.array([D("1.20"), D("99999999.00")], pa.decimal128(12, 2)),
        [0, None],
    ),
    "decimals of 256 bits": (
        pa.array([D("1.2")]),
        pa.array([D(10) ** 70, D("1.2")], pa.decimal256(76, 4)),
        [None, 0],
    ),
    "finer timestamps": (
        pa.array([0, 7], pa.timestamp("s")),
        pa.array([7_000_000, 7_000_001, 0], pa.timestamp("us")),
        [1, None, 0],
    ),
    "coarser timestamps": (
        pa.array([7_000_000], pa.timestamp("us")),
        pa.array([7, 8], pa.timestamp("s")),
        [0, None],
    ),
    "timestamps beyond the finer unit": (
        pa.array([10**9], pa.timestamp("ns")),
        pa.array([1, 10**15], pa.timestamp("s")),
        [0, None],
    ),
    "another zone": (
        pa.array([7], pa.timestamp("s", "UTC")),
        pa.array([7], pa.timestamp("s", "Europe/Berlin")),
        [0],
    ),
    "the other date": (
        pa.array([1, 2], pa.date32()),
        pa.array([2 * 86_400_000, 0], pa.date64()),
        [1, None],
    ),
    "finer times": (
        pa.array([5], pa.time32("s")),
        pa.array([5 * 10**9, 5 * 10**9 + 1], pa.time64("ns")),
        [0, None],
    ),
}


@pytest.mark.parametrize("name", CASTS)
def test_a_stream_may_bring_another_type_of_the_same_kind(tmp_path: Path, name: str) -> None:
    stored, stream, partners = CASTS[name]
    ss.build_master(tmp_path / "m", pa.table({"k": stored, "v": range(len(stored))}), "k")
    # What does not fit the master's type has no partner: it neither wraps around nor is an error.
    assert joined(stream, tmp_path / "m") == dict(enumerate(partners))


EDGES = [s * 2**p + d for p in (0, 7, 8, 31, 32, 63, 64) for s in (1, -1) for d in (-1, 0, 1)]


@settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    stored=st.sampled_from([*INTEGERS]),
    came=st.sampled_from([*INTEGERS]),
    numbers=st.lists(st.sampled_from(EDGES), max_size=20),
)
def test_integers_match_by_value_whatever_their_types(
    tmp_path_factory: pytest.TempPathFactory, stored: str, came: str, numbers: list[int]
) -> None:
    def fitting(name: str) -> list[int]:
        every = spread(INTEGERS[name])
        return sorted({n for n in numbers if every[0] <= n <= every[-1]})

    keys = fitting(stored)
    path = tmp_path_factory.mktemp("integers") / "m"
    ss.build_master(
        path, pa.table({"k": pa.array(keys, INTEGERS[stored]), "v": range(len(keys))}), "k"
    )
    asked = fitting(came)
    found = joined(pa.array(asked, INTEGERS[came]), path)
    assert found == {i: keys.index(n) if n in keys else None for i, n in enumerate(asked)}


# ------------------------------------------------------------------------------------- refusals


def test_a_stream_key_of_another_kind_is_refused_by_name(tmp_path: Path) -> None:
    ss.build_master(tmp_path / "m", pa.table({"k": ["a"], "v": [1]}), "k")
    with pytest.raises(
        KeyTypeError, match=r"'number' is int64 .*'k' is string.*Hint: cast 'number'"
    ):
        ss.join(pa.table({"number": [1]}), tmp_path / "m", on={"number": "k"})
    with pytest.raises(KeyTypeError, match="binary"):
        ss.join(pa.table({"k": [b"a"]}), tmp_path / "m", on="k")
    ss.build_master(tmp_path / "zoned", pa.table({"k": KEYS["timestamp with zone"]}), "k")
    with pytest.raises(KeyTypeError, match=r"timestamp\[us\] .*tz=UTC"):
        ss.join(pa.table({"k": KEYS["timestamp"]}), tmp_path / "zoned", on="k")


@pytest.mark.parametrize(
    "keys",
    [
        pa.array([1.5]),
        pa.array([1.5], pa.float32()),
        pa.array([[1]]),
        pa.array([{"a": 1}]),
        pa.nulls(1),
        pa.array([dt.timedelta(1)]),
        pa.array([1.5]).dictionary_encode(),
        pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"x" * 16], pa.binary(16))),
    ],
    ids=lambda keys: str(keys.type),
)
def test_columns_that_cannot_be_a_key_are_named(tmp_path: Path, keys: pa.Array) -> None:
    with pytest.raises(KeyTypeError, match=r"column 'price' of type .* cannot be a key.*Hint: use"):
        ss.build_master(tmp_path / "m", pa.table({"price": keys}), "price")
    assert list(tmp_path.iterdir()) == []


def test_a_key_must_name_columns_that_exist_each_once(tmp_path: Path) -> None:
    table = pa.table({"customer": [1], "item": [2]})
    with pytest.raises(UnknownNameError, match=r"'custmer'.*customer, item.*mean 'customer'"):
        ss.build_master(tmp_path / "m", table, "custmer")
    with pytest.raises(OptionError, match="twice"):
        ss.build_master(tmp_path / "m", table, ["item", "item"])
    with pytest.raises(OptionError, match="names no column"):
        ss.build_master(tmp_path / "m", table, [])
    for bits in (0, 65):
        with pytest.raises(OptionError, match="between 1 and 64"):
            ss.build_master(tmp_path / "m", table, "item", hash_bits=bits)
    assert list(tmp_path.iterdir()) == []
