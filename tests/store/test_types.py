"""Every Arrow type goes into a master and out of a join unchanged, and likewise as a stream's."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import semistream as ss
from semistream.core.errors import SchemaError
from semistream.store.columns import codec_for
from tests.examples import examples

ROWS = 500


class Celsius(pa.ExtensionType):  # type: ignore[misc]
    """An extension type of somebody else's."""

    def __init__(self) -> None:
        super().__init__(pa.float32(), "semistream.tests.celsius")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> Celsius:
        return cls()


@pytest.fixture(scope="module", autouse=True)
def celsius() -> Any:
    pa.register_extension_type(Celsius())
    yield
    pa.unregister_extension_type("semistream.tests.celsius")


def filled(type_: pa.DataType, value: Callable[[int], Any]) -> pa.Array:
    """500 values, each seventh null."""
    return pa.array([None if i % 7 == 3 else value(i) for i in range(ROWS)], type_)


def number(width: int, signed: bool) -> Callable[[int], int]:
    low, high = (-(2 ** (width - 1)), 2 ** (width - 1) - 1) if signed else (0, 2**width - 1)
    return lambda i: (low, high, low + i % (2**width), high - i % (2**width))[i % 4]


def text(i: int) -> str:
    return ("", "a", "é\N{SNOWMAN}" * (i % 30), f"{i:>40}", "x" * (i * 3))[i % 5]


def blob(i: int) -> bytes:
    return bytes(j * i % 256 for j in range(i % 40))


def amount(digits: int, scale: int) -> Callable[[int], Decimal]:
    largest, least = (Decimal((sign, (9,) * digits, -scale)) for sign in (0, 1))
    return lambda i: (largest, least, Decimal(i).scaleb(-scale), Decimal(0))[i % 4]


def repeated(width: int) -> Callable[[int], bytes]:
    return lambda i: bytes([i % 256] * width)


def moment(i: int) -> dt.datetime:
    return dt.datetime(2026, 1, 31, 12, 30) - dt.timedelta(days=i * 37, microseconds=i)


def encoded(array: pa.Array, index: pa.DataType, *, ordered: bool = False) -> pa.Array:
    plain = array.dictionary_encode()
    indices = plain.indices.cast(index)
    return pa.DictionaryArray.from_arrays(indices, plain.dictionary, ordered=ordered)


def extension(type_: Any, storage: pa.Array) -> pa.Array:
    return pa.ExtensionArray.from_storage(type_, storage)


UNITS = ("s", "ms", "us", "ns")
FLOATS = (0.0, -0.0, 1.5, float("inf"), float("-inf"), float("nan"), 6e-8, -65504.0)
POINT = pa.struct([pa.field("x", pa.float64()), pa.field("name", pa.string(), nullable=False)])


def point(i: int) -> dict[str, Any]:
    return {"x": None if i % 3 == 0 else i / 4, "name": text(i)}


def columns() -> dict[str, pa.Array]:
    found = {
        "null": pa.nulls(ROWS),
        "bool": filled(pa.bool_(), lambda i: i % 2 == 0),
        "string": filled(pa.string(), text),
        "large_string": filled(pa.large_string(), text),
        "string_view": filled(pa.string_view(), text),
        "binary": filled(pa.binary(), blob),
        "large_binary": filled(pa.large_binary(), blob),
        "binary_view": filled(pa.binary_view(), blob),
        "date32": filled(pa.date32(), lambda i: moment(i).date()),
        "date64": filled(pa.date64(), lambda i: moment(i).date()),
        "timestamp with zone": filled(
            pa.timestamp("us", "Europe/Berlin"), lambda i: moment(i).replace(tzinfo=dt.UTC)
        ),
        "interval": filled(
            pa.month_day_nano_interval(), lambda i: pa.MonthDayNano([i, -i, i * 10**9])
        ),
    }
    for width in (8, 16, 32, 64):
        found[f"int{width}"] = filled(getattr(pa, f"int{width}")(), number(width, True))
        found[f"uint{width}"] = filled(getattr(pa, f"uint{width}")(), number(width, False))
    for width, numpy_type in ((16, np.float16), (32, np.float32), (64, np.float64)):
        values = [None if i % 7 == 3 else numpy_type(FLOATS[i % 8]) for i in range(ROWS)]
        found[f"float{width}"] = pa.array(values, getattr(pa, f"float{width}")())
    for width, digits in ((32, 9), (64, 18), (128, 38), (256, 76)):
        type_ = getattr(pa, f"decimal{width}")(digits, 4)
        found[f"decimal{width}"] = filled(type_, amount(digits, 4))
    for width in (0, 1, 3, 16):
        found[f"fixed binary {width}"] = filled(pa.binary(width), repeated(width))
    for unit in UNITS:
        whole = pa.timestamp(unit)
        found[f"timestamp {unit}"] = filled(pa.int64(), lambda i: i * 10**9 - 3).view(whole)
        found[f"duration {unit}"] = filled(pa.int64(), lambda i: i - 250).view(pa.duration(unit))
    for unit, make, plain in (
        ("s", pa.time32, pa.int32()),
        ("ms", pa.time32, pa.int32()),
        ("us", pa.time64, pa.int64()),
        ("ns", pa.time64, pa.int64()),
    ):
        found[f"time {unit}"] = filled(plain, lambda i: i * 100).view(make(unit))
    found |= {
        "dictionary": encoded(filled(pa.string(), lambda i: text(i % 50)), pa.int32()),
        "narrow dictionary": encoded(filled(pa.string(), lambda i: text(i % 50)), pa.uint8()),
        "ordered dictionary": encoded(
            filled(pa.large_string(), lambda i: "abc"[i % 3]), pa.int8(), ordered=True
        ),
        "dictionary of numbers": encoded(filled(pa.int64(), lambda i: i % 9), pa.int16()),
        "dictionary of views": encoded(filled(pa.string_view(), lambda i: text(i % 9)), pa.int8()),
        "dictionary with a null among its values": pa.DictionaryArray.from_arrays(
            pa.array([i % 3 for i in range(ROWS)], pa.int8()), pa.array(["a", None, "b"])
        ),
        "struct": filled(POINT, point),
        "empty struct": filled(pa.struct([]), lambda _: {}),
        "struct of structs": filled(
            pa.struct({"p": POINT, "e": pa.struct([]), "d": pa.decimal128(5, 2)}),
            lambda i: {"p": point(i) if i % 2 else None, "e": {}, "d": Decimal(i) / 100},
        ),
        "list": filled(pa.list_(pa.int32()), lambda i: [1, i, None, -i, 5][: i % 6]),
        "list that must hold values": filled(
            pa.list_(pa.field("each", pa.string(), nullable=False)), lambda i: [text(i)] * (i % 4)
        ),
        "large_list": filled(pa.large_list(pa.string()), lambda i: [text(i), None] * (i % 3)),
        "list of bools": filled(pa.list_(pa.bool_()), lambda i: [i % 2 == 0, None][: i % 3]),
        "list of nulls": filled(pa.list_(pa.null()), lambda i: [None] * (i % 5)),
        "list of lists": filled(
            pa.list_(pa.list_(pa.string())), lambda i: [[text(i)], None, []][: i % 4]
        ),
        "list of structs": filled(
            pa.list_(POINT), lambda i: [point(i), None, point(i + 1)][: i % 4]
        ),
        "list of dictionaries": filled(
            pa.list_(pa.dictionary(pa.int8(), pa.string())), lambda i: ["a", None, "b"][: i % 4]
        ),
        "fixed list": filled(pa.list_(pa.float32(), 3), lambda i: [i, None, i / 2]),
        "fixed list of strings": filled(pa.list_(pa.string(), 2), lambda i: [text(i), None]),
        "fixed list of nothing": filled(pa.list_(pa.int8(), 0), lambda _: []),
        "vectors": filled(pa.list_(pa.float32(), 100), lambda i: [float(i)] * 100),
        "list_view": filled(pa.list_view(pa.int16()), lambda i: list(range(i % 5))),
        "large_list_view": filled(pa.large_list_view(pa.string()), lambda i: [text(i)] * (i % 3)),
        "map": filled(
            pa.map_(pa.string(), pa.int64()), lambda i: [(text(i), i), ("k", None)][: i % 3]
        ),
        "sorted map of lists": filled(
            pa.map_(pa.int32(), pa.list_(POINT), keys_sorted=True),
            lambda i: [(j, [point(i), None]) for j in range(i % 3)],
        ),
        "extension": extension(Celsius(), filled(pa.float32(), float)),
        "uuid": extension(pa.uuid(), filled(pa.binary(16), lambda i: bytes([i % 256] * 16))),
        "bool8": extension(pa.bool8(), filled(pa.int8(), lambda i: i % 2)),
        "json": extension(pa.json_(pa.string()), filled(pa.string(), lambda i: f'{{"a": {i}}}')),
        "tensor": extension(
            pa.fixed_shape_tensor(pa.int16(), (2, 2)),
            filled(pa.list_(pa.int16(), 4), lambda i: [i, 1, 2, 3]),
        ),
        "list of an extension": pa.ListArray.from_arrays(
            pa.array(range(ROWS + 1), pa.int32()), extension(Celsius(), filled(pa.float32(), float))
        ),
    }  # fmt: skip
    return found


COLUMNS = columns()


def shown(column: pa.Array | pa.ChunkedArray) -> list[str]:
    """The values, exactly: -0.0 is not 0.0, and not-a-number is itself."""
    kinds = pa.types
    if kinds.is_temporal(column.type) and column.type.bit_width == 64:
        column = column.cast(pa.int64())  # Python's have fewer years, and no nanoseconds
    return [repr(value) for value in column.to_pylist()]


def check_same(found: pa.ChunkedArray, ids: list[int], source: pa.Array) -> None:
    assert found.type.equals(source.type, check_metadata=True)
    found.validate(full=True)
    expected = shown(source)
    assert shown(found) == [expected[i] for i in ids]
    nulls = source.is_null(nan_is_null=False).to_pylist()
    assert found.is_null(nan_is_null=False).to_pylist() == [nulls[i] for i in ids]


@pytest.mark.parametrize("name", COLUMNS)
def test_a_master_gives_back_what_was_stored(tmp_path: Path, name: str) -> None:
    source = COLUMNS[name]
    table = pa.table({"id": pa.array(range(ROWS)), "v": source})
    ss.build_master(tmp_path / "m", table, "id")
    assert ss.open_master(tmp_path / "m").schema.equals(table.schema)
    stream = pa.table({"id": pa.array([*range(ROWS), -1])})
    result = ss.join(stream, tmp_path / "m", on="id", how="left", memory="1MB").read_all()
    assert result.num_rows == ROWS + 1
    ids = result.column("id").to_pylist()
    absent = ids.index(-1)
    assert result.column("v")[absent].as_py() is None
    parts = [result.slice(0, absent), result.slice(absent + 1)]
    for part in parts:
        check_same(part.column("v"), part.column("id").to_pylist(), source)


@pytest.mark.parametrize("name", COLUMNS)
def test_a_stream_gets_its_columns_back(tmp_path: Path, name: str) -> None:
    source = COLUMNS[name]
    ss.build_master(
        tmp_path / "m", pa.table({"id": range(0, ROWS, 2), "w": range(0, ROWS, 2)}), "id"
    )
    stream = pa.table({"id": pa.array(range(ROWS)), "v": source})
    # Sliced, so that offsets are not zero, and in pieces that bitmaps do not divide evenly.
    batches = stream.slice(3).to_batches(max_chunksize=61)
    for how, wanted in (("left", range(3, ROWS)), ("anti", range(3, ROWS, 2))):
        result = ss.join(batches, tmp_path / "m", on="id", how=how, memory="1MB").read_all()
        ids = result.column("id").to_pylist()
        assert sorted(ids) == list(wanted)
        check_same(result.column("v"), ids, source)


# ------------------------------------------------------------------------------- types refused


REFUSED = {
    "dense union": pa.UnionArray.from_dense(
        pa.array([0, 1], pa.int8()), pa.array([0, 0], pa.int32()), [pa.array([1]), pa.array(["a"])]
    ),
    "sparse union": pa.UnionArray.from_sparse(
        pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array(["a", "b"])]
    ),
    "run-end encoded": pa.RunEndEncodedArray.from_arrays([1, 2], [5, 6]),
    "dictionary of structs": pa.DictionaryArray.from_arrays(
        pa.array([0, 0]), pa.array([{"a": 1}])
    ),
    "list of unions": pa.ListArray.from_arrays(
        pa.array([0, 1, 2], pa.int32()),
        pa.UnionArray.from_sparse(pa.array([0, 0], pa.int8()), [pa.array([1, 2])]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_type_that_cannot_be_stored_is_refused_by_name(tmp_path: Path, name: str) -> None:
    column = REFUSED[name]
    table = pa.table({"id": [1, 2], "odd one": column})
    with pytest.raises(SchemaError, match=r"column 'odd one' of type .*cannot be stored.*Hint: "):
        ss.build_master(tmp_path / "m", table, "id")
    assert list(tmp_path.iterdir()) == []
    ss.build_master(tmp_path / "m", pa.table({"id": [1]}), "id")
    with pytest.raises(SchemaError, match="column 'odd one'"):
        ss.join(table, tmp_path / "m", on="id")


def test_too_many_values_for_a_narrow_dictionary_are_an_error_that_names_the_column(
    tmp_path: Path,
) -> None:
    halves = [
        encoded(pa.array([f"{half}{i}" for i in range(100)]), pa.int8()) for half in ("a", "b")
    ]
    batches = [
        pa.RecordBatch.from_arrays([pa.array(range(at, at + 100)), half], ["id", "kind"])
        for at, half in zip((0, 100), halves, strict=True)
    ]
    ss.build_master(tmp_path / "m", batches, "id")
    joined = ss.join(pa.table({"id": range(200)}), tmp_path / "m", on="id")
    with pytest.raises(SchemaError, match=r"column 'kind': 200 different values.*indices=int8"):
        joined.read_all()


# -------------------------------------------------------------------------- any type, any values


def leaf_types() -> st.SearchStrategy[tuple[pa.DataType, st.SearchStrategy[Any]]]:
    return st.sampled_from(
        [
            (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
            (pa.uint64(), st.integers(0, 2**64 - 1)),
            (pa.bool_(), st.booleans()),
            (pa.string(), st.text(max_size=20)),
            (pa.large_binary(), st.binary(max_size=20)),
            (pa.string_view(), st.text(max_size=20)),
            (pa.binary(5), st.binary(min_size=5, max_size=5)),
            (pa.null(), st.none()),
            (pa.dictionary(pa.int16(), pa.string()), st.sampled_from(["a", "b", "c"])),
        ]
    )


def nullable(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


def nested(
    inner: st.SearchStrategy[tuple[pa.DataType, st.SearchStrategy[Any]]],
) -> st.SearchStrategy[tuple[pa.DataType, st.SearchStrategy[Any]]]:
    def lists(item: Any) -> Any:
        type_, values = item
        kinds = st.sampled_from([pa.list_, pa.large_list, pa.list_view, pa.large_list_view])
        return kinds.map(lambda kind: (kind(type_), st.lists(nullable(values), max_size=4)))

    def fixed(item: Any) -> Any:
        type_, values = item
        return st.integers(0, 3).map(
            lambda n: (pa.list_(type_, n), st.lists(nullable(values), min_size=n, max_size=n))
        )

    def maps(item: Any) -> Any:
        type_, values = item
        pairs = st.tuples(st.text(max_size=5), nullable(values))
        return st.just((pa.map_(pa.string(), type_), st.lists(pairs, max_size=3)))

    def structs(items: Any) -> Any:
        fields = [(f"f{i}", type_) for i, (type_, _) in enumerate(items)]
        values = {f"f{i}": nullable(one) for i, (_, one) in enumerate(items)}
        return st.just((pa.struct(fields), st.fixed_dictionaries(values)))

    return st.one_of(
        inner.flatmap(lists),
        inner.flatmap(fixed),
        inner.flatmap(maps),
        st.lists(inner, max_size=3).flatmap(structs),
    )


def arrays() -> st.SearchStrategy[pa.Array]:
    types = st.recursive(leaf_types(), nested, max_leaves=6)
    return types.flatmap(
        lambda pair: st.lists(nullable(pair[1]), max_size=12).map(lambda v: pa.array(v, pair[0]))
    )


@settings(max_examples=examples(300), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(array=arrays(), begin=st.integers(0, 12), length=st.integers(0, 12))
def test_leaves_carry_everything_of_any_column(array: pa.Array, begin: int, length: int) -> None:
    part = array.slice(min(begin, len(array)), length)
    codec = codec_for(array.type)
    leaves = codec.encode(part)
    assert [leaf.type for leaf in leaves] == [leaf.type for leaf in codec.leaves]
    assert all(len(leaf) == len(part) for leaf in leaves)
    # As a join hands them back: without an offset, in buffers of their own.
    back = codec.decode([pa.concat_arrays([leaf]) for leaf in leaves], len(part))
    back.validate(full=True)
    assert back.type == array.type
    assert back.to_pylist() == part.to_pylist()


NESTED = pa.schema(
    {
        "places": pa.list_(pa.struct({"at": POINT, "tags": pa.list_(pa.string())})),
        "counts": pa.map_(pa.string(), pa.list_(pa.int32())),
        "pair": pa.list_(pa.struct({"n": pa.int8()}), 2),
    }
)
TEXT = st.text(max_size=10)
SMALL = st.integers(-100, 100)
PLACES = nullable(
    st.lists(
        nullable(
            st.fixed_dictionaries(
                {
                    "at": nullable(
                        st.fixed_dictionaries({"x": nullable(st.floats(-9, 9)), "name": TEXT})
                    ),
                    "tags": nullable(st.lists(nullable(TEXT), max_size=3)),
                }
            )
        ),
        max_size=3,
    )
)
COUNTS = nullable(
    st.lists(st.tuples(TEXT, nullable(st.lists(nullable(SMALL), max_size=3))), max_size=3)
)
PAIR = nullable(
    st.lists(nullable(st.fixed_dictionaries({"n": nullable(SMALL)})), min_size=2, max_size=2)
)
in_one_folder = settings(
    max_examples=examples(25),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@in_one_folder
@given(rows=st.lists(st.tuples(PLACES, COUNTS, PAIR), min_size=1, max_size=30))
def test_nested_columns_survive_a_join(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[Any, Any, Any]]
) -> None:
    table = pa.Table.from_arrays(
        [
            pa.array(column, type_)
            for column, type_ in zip(zip(*rows, strict=True), NESTED.types, strict=True)
        ],
        schema=NESTED,
    ).append_column("id", pa.array(range(len(rows))))
    path = tmp_path_factory.mktemp("nested") / "m"
    ss.build_master(path, table, "id")
    stream = table.select(["id", "places", "counts", "pair"])
    result = ss.join(stream, path, on="id", memory="1MB").read_all().sort_by("id")
    result.validate(full=True)
    for name in NESTED.names:
        assert result.column(name).to_pylist() == table.column(name).to_pylist()
        assert result.column(f"{name}_master").to_pylist() == table.column(name).to_pylist()
