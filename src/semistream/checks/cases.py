"""The pairs of a stream and a master that checks share. All are small and made from fixed seeds."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.checks.workspace import Case

Numbers = npt.NDArray[np.int64]

INTEGERS = (
    pa.int8(),
    pa.uint8(),
    pa.int16(),
    pa.uint16(),
    pa.int32(),
    pa.uint32(),
    pa.int64(),
    pa.uint64(),
)


def texts(rng: np.random.Generator, rows: int, longest: int = 60, nulls: float = 0.1) -> pa.Array:
    """Strings of many lengths, the empty one and nulls among them."""
    lengths = rng.integers(0, longest + 1, rows)
    letters = "abcdefghij\u00e9\u4e16"
    marks = rng.integers(0, len(letters), rows)
    missing = rng.random(rows) < nulls
    return pa.array(
        [
            None if gone else letters[mark] * int(length)
            for length, mark, gone in zip(lengths, marks, missing, strict=True)
        ],
        pa.string(),
    )


def nullable(rng: np.random.Generator, values: npt.NDArray[Any], nulls: float = 0.1) -> pa.Array:
    """The values with some of them null."""
    return pa.array(values, mask=rng.random(len(values)) < nulls)


def master_table(keys: pa.Array, seed: int = 1, name: str = "k", strings: bool = True) -> pa.Table:
    """Master rows with these keys; payload with and without nulls, strings or not."""
    rng = np.random.default_rng(seed)
    rows = len(keys)
    columns = {
        name: keys,
        "row": pa.array(np.arange(rows)),
        "price": nullable(rng, rng.random(rows)),
        "count": nullable(rng, rng.integers(-100, 100, rows).astype(np.int16)),
    }
    if strings:
        columns["label"] = texts(rng, rows)
    return pa.table(columns)


def stream_table(keys: pa.Array, seed: int = 2, name: str = "k", strings: bool = True) -> pa.Table:
    """Stream rows with these keys; each row has a number of its own."""
    rng = np.random.default_rng(seed)
    rows = len(keys)
    columns = {"event": pa.array(np.arange(rows)), name: keys}
    columns["amount"] = nullable(rng, rng.integers(0, 1000, rows).astype(np.int32))
    if strings:
        columns["note"] = texts(rng, rows, longest=40)
    return pa.table(columns)


def one_key(name: str, stream_keys: pa.Array, master_keys: pa.Array, **options: Any) -> Case:
    """A case whose key is one column."""
    strings = options.pop("strings", True)
    stream = stream_table(stream_keys, name="id", strings=strings)
    return Case(name, stream, master_table(master_keys, strings=strings), {"id": "k"}, **options)


def _draw(seed: int, rows: int, low: int, high: int) -> Numbers:
    return np.random.default_rng(seed).integers(low, high, rows)


@cache
def numbers() -> Case:
    """Unique integers with gaps and nothing of variable width; half of the stream finds a match."""
    keys = np.random.default_rng(3).permutation(3000)[:1500] * 3 - 2000
    return one_key("numbers", pa.array(_draw(4, 3000, -3000, 8000)), pa.array(keys), strings=False)


@cache
def mixed() -> Case:
    """Unique integers, with strings and nulls on both sides."""
    keys = np.random.default_rng(5).permutation(3000)[:1500]
    return one_key("mixed", pa.array(_draw(6, 3000, -100, 3200)), pa.array(keys))


@cache
def duplicates() -> Case:
    """Each key several times in the master and in the stream."""
    return one_key("duplicates", pa.array(_draw(7, 2000, 0, 320)), pa.array(_draw(8, 1500, 0, 300)))


@cache
def null_keys() -> Case:
    """Null keys in the master and in the stream, which match nothing."""
    rng = np.random.default_rng(9)
    return one_key(
        "null keys",
        nullable(rng, rng.integers(0, 600, 2000), 0.3),
        nullable(rng, rng.integers(0, 500, 1000), 0.3),
    )


@cache
def only_null_keys() -> Case:
    """A stream in which every key is null."""
    return one_key("only null keys", pa.nulls(700, pa.int64()), pa.array(np.arange(300)))


def _words(seed: int, rows: int, kinds: int) -> list[str]:
    odd = ["", "a", "A", "a\0", "ab", "abc", "\u00e9", "e\u0301", " ", "x" * 300]
    return [
        odd[i] if i < len(odd) else f"customer-{i * 7919:07d}"[: 6 + i % 12] + str(i)
        for i in _draw(seed, rows, 0, kinds).tolist()
    ]


@cache
def string_keys() -> Case:
    """Strings that are empty, nearly equal, long, and with zero bytes in them."""
    rng = np.random.default_rng(10)
    stream = pa.array(_words(11, 2000, 900), mask=rng.random(2000) < 0.05)
    return one_key("string keys", stream, pa.array(_words(12, 1200, 700)))


def _pairs(seed: int, rows: int, kinds: int) -> tuple[pa.Array, pa.Array]:
    rng = np.random.default_rng(seed)
    number = rng.integers(0, kinds, rows)
    text = ["a" * int(n) for n in rng.integers(0, 6, rows)]
    return (
        pa.array(number.astype(np.int32), mask=rng.random(rows) < 0.05),
        pa.array(text, mask=rng.random(rows) < 0.05),
    )


def _composite(name: str, **build: Any) -> Case:
    a, b = _pairs(13, 2000, 120)
    c, d = _pairs(14, 1000, 100)
    stream = stream_table(a, name="left").append_column("right", b)
    master = master_table(c, name="x").append_column("y", d)
    return Case(name, stream, master, {"left": "x", "right": "y"}, build)


@cache
def composite_keys() -> Case:
    """Two key columns, an integer and a string, each null now and then."""
    return _composite("composite keys")


@cache
def composite_strings() -> Case:
    """Two string columns whose bytes, put together, are equal for different keys."""
    parts = [("ab", "c"), ("a", "bc"), ("", "abc"), ("abc", ""), ("b", "ac")]
    rng = np.random.default_rng(15)
    stream = [parts[i] for i in rng.integers(0, 5, 400)]
    master = [parts[i] for i in rng.integers(0, 4, 12)]
    return Case(
        "composite strings",
        stream_table(pa.array([a for a, _ in stream]), name="p").append_column(
            "q", pa.array([b for _, b in stream])
        ),
        master_table(pa.array([a for a, _ in master]), name="p").append_column(
            "q", pa.array([b for _, b in master])
        ),
        {"q": "q", "p": "p"},
    )


@cache
def string_collisions() -> Case:
    """String keys whose hashes have three bits: nearly all of them collide, over many pages."""
    return one_key(
        "string collisions",
        pa.array(_words(16, 500, 500)),
        pa.array(_words(17, 600, 400)),
        build={"hash_bits": 3},
    )


@cache
def early_partners() -> Case:
    """Keys that all collide, over many pages: rows of short keys come first among them. Stream rows
    with such a key meet their partners early and must still be led through the other pages."""
    keys = ["k" * (1 + i // 30) for i in range(600)]
    stream = ["k" * int(n) for n in _draw(37, 400, 1, 24)]
    return one_key(
        "early partners", pa.array(stream), pa.array(keys), strings=False, build={"hash_bits": 1}
    )


@cache
def composite_collisions() -> Case:
    """Composite keys whose hashes have three bits."""
    a, b = _pairs(13, 500, 120)
    whole = _composite("composite collisions", hash_bits=3)
    stream = stream_table(a, name="left").append_column("right", b)
    return Case(whole.name, stream, whole.master, whole.on, whole.build)


def _limits(type_: pa.DataType) -> tuple[int, int]:
    if pa.types.is_signed_integer(type_):
        return -(2 ** (type_.bit_width - 1)), 2 ** (type_.bit_width - 1) - 1
    return 0, 2**type_.bit_width - 1


def _edge_values(type_: pa.DataType) -> list[int]:
    low, high = _limits(type_)
    edges = {low, low + 1, high, high - 1, *range(-3, 4)}
    for bits in (7, 8, 15, 16, 31, 32, 63, 64):
        edges |= {2**bits - 1, 2**bits, -(2**bits), 1 - 2**bits}
    return sorted(value for value in edges if low <= value <= high)


@cache
def _integer_master(type_: pa.DataType) -> pa.Table:
    low, high = _limits(type_)
    more = _draw(18, 80, max(low, -60), 60).tolist()
    values = _edge_values(type_) + [value for value in more if low <= value <= high]
    return master_table(pa.array(values, type_), strings=False)


@cache
def integer_widths(came: pa.DataType, stored: pa.DataType) -> Case:
    """A stream of one integer type and a master of another, with the limits of both."""
    keys = pa.array(_edge_values(came) * 3, came)
    master = _integer_master(stored)
    wide = pa.decimal128(38, 0)
    return Case(
        f"{came} in {stored}",
        stream_table(keys, name="id", strings=False),
        master,
        {"id": "k"},
        comparable=(keys.cast(wide), master.column("k").combine_chunks().cast(wide)),
        master_name=f"integers {stored}",
    )


@cache
def spread_integers(width: int) -> Case:
    """Keys whose range takes just 32 bits, one more, or all 64: the index has a form for each."""
    high = {32: 2**32 - 1, 33: 2**32, 64: 2**63 - 1}[width]
    low = {32: -7, 33: -7, 64: -(2**63)}[width]
    rng = np.random.default_rng(19)
    inner = rng.integers(low, high, 900, endpoint=True) + (0 if width == 64 else low)
    keys = np.unique(np.concatenate([inner, np.array([low, high + min(low, 0) * (width < 64)])]))
    stream = np.concatenate([rng.choice(keys, 700), rng.choice(keys[1:-1], 300) + 1])
    extremes = np.array([-(2**63), 2**63 - 1, low, keys[-1], 0, -1])
    return one_key(
        f"spread {width}",
        pa.array(np.concatenate([stream, extremes])),
        pa.array(keys),
        strings=False,
    )


def _of(type_: pa.DataType, make: Callable[[int], Any]) -> Callable[[Sequence[int]], pa.Array]:
    return lambda numbers: pa.array([make(n) for n in numbers], type_)


def _moment(n: int) -> dt.datetime:
    return dt.datetime(1969, 12, 31, 23) + dt.timedelta(minutes=n)


_KEYS: dict[str, Callable[[Sequence[int]], pa.Array]] = {
    "date32": _of(pa.date32(), lambda n: dt.date(1969, 6, 1) + dt.timedelta(days=n)),
    "date64": _of(pa.date64(), lambda n: dt.date(1969, 6, 1) + dt.timedelta(days=n)),
    "timestamp s": _of(pa.timestamp("s"), _moment),
    "timestamp ms": _of(pa.timestamp("ms"), _moment),
    "timestamp us": _of(pa.timestamp("us"), _moment),
    "timestamp ns": _of(pa.timestamp("ns"), _moment),
    "timestamp zone": _of(pa.timestamp("us", "UTC"), _moment),
    "time32": _of(pa.time32("s"), lambda n: n),
    "time64": _of(pa.time64("us"), lambda n: n * 1000),
    "decimal": _of(pa.decimal128(12, 2), lambda n: decimal.Decimal(n - 100) / 4),
    "wide decimal": _of(pa.decimal128(38, 0), lambda n: decimal.Decimal(10) ** 30 * (n - 100)),
    "binary": _of(pa.binary(), lambda n: bytes([n % 256, 0, n // 256])[: 1 + n % 3]),
    "fixed binary": _of(pa.binary(5), lambda n: b"\0" + n.to_bytes(4, "big")),
    "large binary": _of(pa.large_binary(), lambda n: n.to_bytes(2, "big")),
    "boolean": _of(pa.bool_(), lambda n: n % 2 == 0),
    "large string": _of(pa.large_string(), lambda n: f"key {n}"),
    "string view": _of(pa.string_view(), lambda n: f"a key that is not inlined {n}"),
    "dictionary": lambda numbers: pa.array([f"key {n}" for n in numbers]).dictionary_encode(),
}

KEY_TYPES = tuple(_KEYS)
"""Kinds of keys besides integers and strings."""


@cache
def key_type(kind: str) -> Case:
    """Stream and master with keys of one kind."""
    make = _KEYS[kind]
    few = 40 if kind == "boolean" else 400
    return one_key(
        f"{kind} keys",
        make(_draw(20, few, 0, 450).tolist()),
        make(_draw(21, few * 3 // 4, 0, 350).tolist()),
    )


def _cross(name: str, came: pa.Array, stored: pa.Array, pairs: Callable[[Any], Any]) -> Case:
    """A case with two types, compared by what `pairs` makes of their Python values."""

    def plain(values: pa.Array) -> pa.Array:
        return pa.array([None if v is None else pairs(v) for v in values.to_pylist()])

    stream = stream_table(came, name="id")
    master = master_table(stored)
    return Case(name, stream, master, {"id": "k"}, comparable=(plain(came), plain(stored)))


@cache
def crossed_types() -> tuple[Case, ...]:
    """Keys of another type in the stream than in the master; some do not fit the master's."""
    seconds = [0, 1, -1, 60, 9_999_999_999, 9_223_372_036, -62_000_000_000]
    money = [decimal.Decimal(n) / 10000 for n in (0, 12300, 12345, -5, 99_999_999_999)]
    strings = [f"key {n}" for n in range(60)]
    return (
        _cross(
            "date32 in date64",
            pa.array([-1, 0, 1, 20_000, 2_000_000, None], pa.date32()),
            pa.array([0, 1, 20_000, 30_000], pa.date32()).cast(pa.date64()),
            str,
        ),
        _cross(
            "seconds in microseconds",
            pa.array(seconds, pa.int64()).cast(pa.timestamp("s")),
            pa.array([n * 1_000_000 for n in seconds[:5]]).cast(pa.timestamp("us")),
            str,
        ),
        _cross(
            "microseconds in seconds",
            pa.array([0, 1, 1_000_000, 1_000_001, -1, 60_000_000]).cast(pa.timestamp("us")),
            pa.array([-1, 0, 1, 60, 61]).cast(pa.timestamp("s")),
            str,
        ),
        _cross(
            "seconds beyond nanoseconds",
            pa.array(seconds, pa.int64()).cast(pa.timestamp("s")),
            pa.array([0, 10**9, 60 * 10**9]).cast(pa.timestamp("ns")),
            lambda value: str(value)[:19],
        ),
        _cross(
            "decimals of another scale",
            pa.array(money, pa.decimal128(20, 4)),
            pa.array([decimal.Decimal("0"), decimal.Decimal("1.23")], pa.decimal128(7, 2)),
            lambda value: str(value.normalize()),
        ),
        _cross(
            "strings in large strings",
            pa.array(strings[10:] * 2, pa.string()),
            pa.array(strings[:50], pa.large_string()),
            str,
        ),
        _cross(
            "a dictionary in strings",
            pa.array([*strings[10:], None, *strings[:3]]).dictionary_encode(),
            pa.array(strings[:50]),
            str,
        ),
        _cross(
            "binary in fixed binary",
            pa.array([b"abcd", b"abc", b"abcde", b"", None, b"wxyz"], pa.binary()),
            pa.array([b"abcd", b"wxyz", b"1234"], pa.binary(4)),
            bytes.hex,
        ),
        _cross(
            "fixed binary in binary",
            pa.array([b"abcd", b"1234", None, b"wxyz"], pa.binary(4)),
            pa.array([b"abcd", b"wxyz", b"abc"], pa.binary()),
            bytes.hex,
        ),
    )


@cache
def empty_stream() -> Case:
    """No stream row at all."""
    none = pa.array([], pa.int64())
    return one_key("empty stream", none, pa.array(np.arange(500)))


@cache
def empty_master() -> Case:
    """No master row at all."""
    return one_key("empty master", pa.array(_draw(22, 800, 0, 50)), pa.array([], pa.int64()))


@cache
def empty_string_master() -> Case:
    """No master row at all, keys are hashed."""
    return one_key("empty string master", pa.array(["a", "", None]), pa.array([], pa.string()))


@cache
def one_row() -> Case:
    """A master of one row."""
    return one_key("one row", pa.array(_draw(23, 800, 4, 9)), pa.array([6]))


@cache
def hot_key() -> Case:
    """A stream of a single key, which the master has once, amid others."""
    return one_key("hot key", pa.array(np.full(3000, 700)), pa.array(np.arange(2000)))


@cache
def hot_string() -> Case:
    """A stream of a single string key, which the master has twice."""
    keys = [f"key {n // 2}" for n in range(1600)]
    return one_key("hot string", pa.array(["key 70"] * 1500), pa.array(keys))


@cache
def long_runs() -> Case:
    """Keys with more rows than fit in several pages: first, in the middle, side by side, last."""
    heavy = [0, 400, 401, 402, 999]
    keys = np.concatenate([np.arange(1000), np.repeat(heavy, 500)])
    rng = np.random.default_rng(24)
    stream = np.concatenate([rng.integers(-5, 1005, 150), rng.choice(heavy, 25)])
    return one_key("long runs", pa.array(rng.permutation(stream)), pa.array(keys))


@cache
def one_long_run() -> Case:
    """A master of a single key, many pages long."""
    keys = np.full(9000, 17)
    stream = np.array([17, 16, 18, 17, 17])
    return one_key("one long run", pa.array(stream), pa.array(keys), strings=False)


@cache
def sharded() -> Case:
    """Several shards, with keys that reach over pages."""
    base = duplicates()
    heavy = np.repeat([5, 77, 200], 300)
    keys = np.concatenate([base.master.column("k").to_numpy(), heavy, np.arange(1000, 2500)])
    stream = np.concatenate([_draw(25, 400, -10, 320), _draw(26, 900, 990, 2600)])
    return one_key("sharded", pa.array(stream), pa.array(keys), build={"shards": 5})


@cache
def sharded_strings() -> Case:
    """More shards than keys: some of them are empty."""
    return one_key(
        "sharded strings",
        pa.array(_words(27, 600, 14)),
        pa.array(_words(28, 40, 9)),
        build={"shards": 16},
    )


@cache
def half_filled() -> Case:
    """Pages with room left in them."""
    base = mixed()
    return Case("half filled", base.stream, base.master, base.on, {"fill": 0.3})


@cache
def wide() -> Case:
    """Columns of many types on both sides, with nulls, and names that occur on both."""
    rng = np.random.default_rng(29)

    def columns(rows: int) -> dict[str, pa.Array]:
        gone = rng.random(rows) < 0.2
        some = rng.integers(0, 9, rows)
        return {
            "flag": pa.array(some % 2 == 0, mask=gone),
            "tiny": pa.array(some.astype(np.int8), mask=gone),
            "float": pa.array(np.where(some == 3, np.nan, some / 3).astype(np.float32), mask=gone),
            "day": pa.array(some.astype(np.int32), mask=gone).cast(pa.date32()),
            "money": pa.array(
                [
                    None if g else decimal.Decimal(int(n)) / 8
                    for g, n in zip(gone, some, strict=True)
                ],
                pa.decimal128(20, 3),
            ),
            "fixed": pa.array([bytes([int(n)] * 3) for n in some], pa.binary(3)),
            "bytes": pa.array([bytes(int(n)) for n in some], pa.large_binary(), mask=gone),
            "colour": pa.array([f"colour {n}" for n in some], mask=gone).dictionary_encode(),
            "view": pa.array(
                [None if g else "v" * int(3 * n) for g, n in zip(gone, some, strict=True)],
                pa.string_view(),
            ),
            "nothing": pa.nulls(rows),
            "pair": pa.array(
                [
                    None if g else {"a": int(n) if n % 3 else None, "b": "b" * int(n)}
                    for g, n in zip(gone, some, strict=True)
                ],
                pa.struct([("a", pa.int32()), ("b", pa.string())]),
            ),
        }

    stream = {
        "event": pa.array(np.arange(900)),
        **columns(900),
        "k": pa.array(_draw(30, 900, 0, 400)),
    }
    master = {**columns(500), "k": pa.array(_draw(31, 500, 0, 350)), "last": texts(rng, 500)}
    return Case("wide", pa.table(stream), pa.table(master), {"k": "k"})


@cache
def only_keys() -> Case:
    """A stream and a master that have nothing but their key."""
    stream = pa.table({"k": pa.array(_draw(32, 1000, 0, 300))})
    return Case("only keys", stream, pa.table({"k": pa.array(_draw(33, 400, 0, 250))}), {"k": "k"})


@cache
def uneven_strings() -> Case:
    """Rows whose byte strings are now empty, now many times longer than the average."""
    rng = np.random.default_rng(34)
    stream_keys = rng.integers(0, 500, 1200)
    stream = pa.table(
        {
            "k": pa.array(stream_keys),
            "event": pa.array(np.arange(1200)),
            "note": pa.array(["n" * (3000 if i % 97 == 13 else i % 5) for i in range(1200)]),
        }
    )
    master = pa.table(
        {
            "k": pa.array(rng.integers(0, 450, 900)),
            "label": pa.array(["m" * (2500 if i % 89 == 7 else i % 9) for i in range(900)]),
        }
    )
    return Case("uneven strings", stream, master, {"k": "k"})


@cache
def long_results() -> Case:
    """A row with long byte strings meets many master rows with long ones, in pages they fill."""
    long, short = "s" * 700, "s"
    stream = pa.table({"k": [1, 2, 1, 3, 1] * 9, "note": [short, long, long, "", short] * 9})
    master = pa.table({"k": [1] * 60 + [2] * 9 + [5], "label": ["m" * 1200] * 69 + [""]})
    return Case("long results", stream, master, {"k": "k"})


@cache
def large_pages() -> Case:
    """Pages as large as the rest of the memory, full of long byte strings of one key."""
    stream = pa.table({"k": [1, 2, 3, 1] * 9})
    master = pa.table({"k": [1] * 60 + [2] * 9 + [5], "label": ["m" * 3000] * 69 + [""]})
    return Case("large pages", stream, master, {"k": "k"}, {"page_size": 65_536})


@cache
def long_stream_rows() -> Case:
    """Stream rows with long byte strings, each of which meets a whole page of short master rows."""
    stream = pa.table({"k": [1, 2, 3, 1] * 15, "note": ["n" * 600, "", "n" * 900, "n" * 300] * 15})
    master = pa.table({"k": [1] * 600 + [2] * 90 + [5], "label": ["m"] * 690 + [""]})
    return Case("long stream rows", stream, master, {"k": "k"})


@cache
def many_results() -> Case:
    """A row meets as many short master rows in each page as a page can hold."""
    stream = pa.table({"k": [1, 2, 1, 3, 1] * 3})
    master = pa.table({"k": [1] * 1500 + [2] * 300 + [5], "n": np.arange(1801)})
    return Case("many results", stream, master, {"k": "k"})


@cache
def skewed(strings: bool = True) -> Case:
    """A stream in which a few keys make up most rows, long enough for caches to fill."""
    rng = np.random.default_rng(35)
    ranks = np.minimum(rng.zipf(1.3, 20_000), 4000)
    keys = (ranks * 2654435761) % 4001
    return one_key(
        f"skewed {'strings' if strings else 'numbers'}",
        pa.array(keys),
        pa.array(np.arange(3900)),
        strings=strings,
    )


@cache
def uniform() -> Case:
    """A long stream without any skew: nothing is worth caching."""
    return one_key(
        "uniform", pa.array(_draw(36, 40_000, 0, 4000)), pa.array(np.arange(3900)), strings=False
    )


@cache
def skewed_collisions() -> Case:
    """A skewed stream of strings, each of whose hashes is that of several keys: what a cache finds
    by the hash must be verified as well."""
    numbers = skewed(False).stream.column("id").to_numpy()[:8000]
    return one_key(
        "skewed collisions",
        pa.array([f"key {n}" for n in numbers]),
        pa.array([f"key {n}" for n in range(0, 3900, 2)]),
        build={"hash_bits": 9},
    )


@cache
def by_frequency(case: Case, column: str = "price", shards: int = 1) -> Case:
    """The same with the master in the order of a column, the greatest first."""
    build = {**case.build, "frequency": column, **({"shards": shards} if shards > 1 else {})}
    name = f"{case.name} by {column}" + (f" in {shards} shards" if shards > 1 else "")
    return Case(name, case.stream, case.master, case.on, build, case.comparable)
