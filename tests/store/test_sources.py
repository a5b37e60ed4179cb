"""Opening what a master is built from: every kind of source, every way to be wrong."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import feather

from semistream.core.errors import (
    BadRowError,
    OptionError,
    SemiStreamError,
    SourceError,
    UnknownNameError,
)
from semistream.store import csv as csv_reader
from semistream.store.opened import Source
from semistream.store.sources import open_source
from tests.examples import examples

SAMPLE_ROWS = csv_reader.SAMPLE_ROWS


def table(rows: int = 1000, begin: int = 0) -> pa.Table:
    ids = np.arange(begin, begin + rows)
    return pa.table({"id": ids, "name": [f"n{i}" for i in ids], "price": ids * 0.5})


def read(source: Source) -> pa.Table:
    return pa.Table.from_batches(list(source.batches()), schema=source.schema)


def write_ipc(path: Path, data: pa.Table, *, stream: bool, chunk: int = 300) -> None:
    opener = pa.ipc.new_stream if stream else pa.ipc.new_file
    with opener(path, data.schema) as writer:
        writer.write_table(data, max_chunksize=chunk)


def save(path: Path, data: pa.Table) -> Path:
    if path.name.endswith(".parquet"):
        pq.write_table(data, path, row_group_size=400)
    elif path.name.endswith((".arrow", ".ipc")):
        write_ipc(path, data, stream=path.name.endswith(".ipc"))
    elif path.name.endswith(".feather"):
        feather.write_feather(data, path, compression="lz4")
    else:
        text = io.StringIO()
        writer = csv.writer(text)
        writer.writerow(data.column_names)
        writer.writerows(zip(*data.to_pydict().values(), strict=True))
        raw = text.getvalue().encode()
        path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return path


SUFFIXES = [".parquet", ".csv", ".csv.gz", ".arrow", ".ipc", ".feather", ".PARQUET", ".CSV"]


# ------------------------------------------------------------------------------ kinds of source


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_file_kind_gives_its_rows_in_order(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"master{suffix}"
    save(tmp_path / f"master{suffix.lower()}", table()).rename(path)
    source = open_source(path, batch_rows=128)
    assert source.schema.equals(table().schema)
    assert source.rows in (1000, None)
    batches = list(source.batches())
    assert all(0 < b.num_rows <= 128 for b in batches)
    assert pa.Table.from_batches(batches).equals(table())
    assert read(source).equals(table()), "a file can be read again"
    assert source.rejected_rows == 0
    assert "3 columns" in source.describe()
    assert "\n" not in source.describe()


@pytest.mark.parametrize("suffix", SUFFIXES[:6])
def test_folders_patterns_and_lists_read_files_in_order(tmp_path: Path, suffix: str) -> None:
    folder = tmp_path / "parts"
    folder.mkdir()
    for part in range(3):
        save(folder / f"part-{part}{suffix}", table(100, part * 100))
    (folder / "_SUCCESS").touch()
    (folder / ".part-0.crc").touch()
    paths = [folder / f"part-{part}{suffix}" for part in range(3)]
    for source in (
        folder,
        str(folder),
        str(folder / f"p*{suffix}"),
        tmp_path / "**" / f"p*{suffix}",
    ):
        assert read(open_source(source)).equals(table(300))
    assert read(open_source(paths)).equals(table(300))
    assert read(open_source([str(p) for p in paths[1:]])).equals(table(200, 100))
    backwards = read(open_source(paths[::-1]))
    assert backwards.column("id")[0].as_py() == 200
    assert "3 " in open_source(folder).describe()


def test_known_row_counts_come_without_reading(tmp_path: Path) -> None:
    assert open_source(save(tmp_path / "a.parquet", table())).rows == 1000
    assert open_source(save(tmp_path / "a.arrow", table())).rows == 1000
    assert open_source(save(tmp_path / "a.feather", table())).rows == 1000
    assert open_source(save(tmp_path / "a.ipc", table())).rows is None
    assert open_source(save(tmp_path / "a.csv", table())).rows is None
    assert open_source(table()).rows == 1000


def test_a_name_with_pattern_characters_is_a_file_first(tmp_path: Path) -> None:
    save(tmp_path / "a[1].csv", table(5))
    save(tmp_path / "a1.csv", table(7))
    assert read(open_source(tmp_path / "a[1].csv")).num_rows == 5


def test_arrow_data_in_memory() -> None:
    data = table()
    batches = data.to_batches(max_chunksize=300)
    for source in (data, data.combine_chunks().to_batches()[0], batches, tuple(batches)):
        opened = open_source(source, batch_rows=256)
        assert opened.rows == 1000
        assert max(b.num_rows for b in opened.batches()) <= 256
        assert read(opened).equals(data)


def test_one_shot_sources_are_read_once() -> None:
    data = table()

    def generate() -> Iterator[pa.RecordBatch]:
        yield from data.to_batches(max_chunksize=300)

    for source in (
        data.to_reader(),
        generate(),
        iter(data.to_batches()),
        filter(None, generate()),
    ):
        opened = open_source(source)
        assert opened.rows is None
        assert opened.one_shot
        assert read(opened).equals(data)
        with pytest.raises(SourceError, match="only once"):
            opened.batches()


class Frame:
    """Stands for any data frame that speaks Arrow's stream interface."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return table(10).__arrow_c_stream__(requested_schema)


def test_objects_with_the_arrow_stream_interface() -> None:
    frame: Any = Frame()
    assert read(open_source(frame)).equals(table(10))
    with pytest.raises(SourceError, match="is not a"):
        open_source(pa.chunked_array([[1, 2]]))


def test_datasets(tmp_path: Path) -> None:
    for part in range(2):
        save(tmp_path / f"p{part}.parquet", table(500, part * 500))
    opened = open_source(pads.dataset(tmp_path), columns=["price", "id"], batch_rows=100)
    assert opened.rows == 1000
    assert max(b.num_rows for b in opened.batches()) <= 100
    assert read(opened).equals(table().select(["price", "id"]))
    assert read(open_source(pads.dataset(table()))).equals(table())
    save(tmp_path / "c.csv", table(10))
    from_csv = open_source(pads.dataset(tmp_path / "c.csv", format="csv"))
    assert from_csv.rows is None
    assert read(from_csv).equals(table(10))


def test_an_empty_table_has_a_schema_and_no_batches(tmp_path: Path) -> None:
    empty = table(0)
    assert list(open_source(empty).batches()) == []
    assert list(open_source(save(tmp_path / "e.parquet", empty)).batches()) == []
    header_only = open_source(save(tmp_path / "e.csv", empty))
    assert header_only.schema.names == ["id", "name", "price"]
    assert list(header_only.batches()) == []


# -------------------------------------------------------------------------------------- columns


@pytest.mark.parametrize("suffix", SUFFIXES[:6])
def test_columns_are_picked_in_the_order_asked(tmp_path: Path, suffix: str) -> None:
    path = save(tmp_path / f"a{suffix}", table())
    opened = open_source(path, columns=["price", "id"])
    assert opened.schema.names == ["price", "id"]
    assert read(opened).equals(table().select(["price", "id"]))


@pytest.mark.parametrize("suffix", SUFFIXES[:6])
def test_an_unknown_column_is_named_with_the_known_ones(tmp_path: Path, suffix: str) -> None:
    path = save(tmp_path / f"a{suffix}", table(10))
    with pytest.raises(UnknownNameError, match=r"'prize'.*id, name, price.*did you mean 'price'"):
        open_source(path, columns=["id", "prize"])


def test_columns_must_make_sense() -> None:
    for columns in ([], ["id", "id"], "id"):
        with pytest.raises(OptionError):
            open_source(table(), columns=columns)
    with pytest.raises(UnknownNameError):
        open_source(table(), columns=["no"])
    twice = pa.table([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pytest.raises(SourceError, match="two columns 'a'"):
        open_source(twice)
    with pytest.raises(OptionError):
        open_source(table(), batch_rows=0)
    with pytest.raises(OptionError, match="CSV only"):
        open_source(table(), column_types={"id": pa.int32()})


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_files_may_differ_in_columns_not_asked_for_and_in_nullability(
    tmp_path: Path, suffix: str
) -> None:
    one = table(10)
    strict = pa.schema([f.with_nullable(False) for f in one.schema])
    save(tmp_path / f"a{suffix}", one.cast(strict))
    save(tmp_path / f"b{suffix}", one.append_column("more", one.column("id")))
    opened = open_source(tmp_path, columns=["name", "id"])
    assert read(opened).num_rows == 20
    assert opened.schema.field("id").nullable


# --------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize("suffix", SUFFIXES[:6])
def test_different_schemas_name_both_files_and_the_field(tmp_path: Path, suffix: str) -> None:
    save(tmp_path / f"a{suffix}", table(10))
    save(tmp_path / f"b{suffix}", table(10).rename_columns(["id", "title", "price"]))
    with pytest.raises(SourceError) as caught:
        open_source(tmp_path)
    for part in (f"a{suffix}", f"b{suffix}", "'name'", "'title'"):
        assert part in str(caught.value)


def test_a_different_type_is_a_different_schema(tmp_path: Path) -> None:
    save(tmp_path / "a.parquet", table(10))
    changed = table(10).set_column(2, "price", table(10).column("id"))
    save(tmp_path / "b.parquet", changed)
    with pytest.raises(SourceError, match=r"'price' \(double\).*'price' \(int64\)"):
        open_source(tmp_path)


def test_a_batch_with_another_schema_is_named() -> None:
    batches = [*table(10).to_batches(), *table(10).drop_columns(["name"]).to_batches()]
    with pytest.raises(SourceError, match="batch 2"):
        read(open_source(batches))
    with pytest.raises(SourceError, match="item 2"):
        read(open_source([*table(10).to_batches(), 5]))
    # Picked columns are all that counts.
    assert read(open_source(batches, columns=["id"])).num_rows == 20


def test_paths_that_lead_nowhere(tmp_path: Path) -> None:
    save(tmp_path / "items.csv", table(3))
    with pytest.raises(SourceError, match=r"no file or folder .*item\.csv.*did you mean .*items"):
        open_source(tmp_path / "item.csv")
    with pytest.raises(SourceError, match="no folder"):
        open_source(tmp_path / "nowhere" / "a.csv")
    with pytest.raises(SourceError, match="no file matches"):
        open_source(str(tmp_path / "*.parquet"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match="no files"):
        open_source(tmp_path / "empty")
    with pytest.raises(SourceError, match="another folder, 'empty'"):
        open_source(tmp_path)


def test_suffixes_must_be_known_and_alike(tmp_path: Path) -> None:
    (tmp_path / "a.xlsx").touch()
    with pytest.raises(SourceError, match=r"\.xlsx.*\.parquet, \.csv, \.csv\.gz"):
        open_source(tmp_path / "a.xlsx")
    (tmp_path / "plain").touch()
    with pytest.raises(SourceError, match="no suffix"):
        open_source(tmp_path / "plain")
    one = save(tmp_path / "a.csv", table(3))
    two = save(tmp_path / "a.parquet", table(3))
    with pytest.raises(SourceError, match=r"a\.csv' is CSV and .*a\.parquet' is Parquet"):
        open_source([one, two])


@pytest.mark.parametrize("source", [5, None, {"id": [1]}, b"a.csv", [1, 2], object()])
def test_things_that_are_no_source(source: Any) -> None:
    with pytest.raises(SourceError, match=r"Hint: .*RecordBatchReader"):
        open_source(source)


def test_an_empty_iterable_has_no_schema() -> None:
    nothing: list[pa.RecordBatch] = []
    for source in (nothing, iter(nothing)):
        with pytest.raises(SourceError, match=r"empty.*Hint: .*RecordBatchReader"):
            open_source(source)
    with pytest.raises(SourceError, match="a list of paths holds a int"):
        open_source([__file__, 5])


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".ipc", ".feather"])
def test_damaged_files_are_named(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"bad{suffix}"
    path.write_bytes(b"this is not what the suffix says" * 10)
    with pytest.raises(SourceError, match="bad"):
        open_source(path)


def test_files_cut_short_are_named(tmp_path: Path) -> None:
    path = save(tmp_path / "a.ipc", table())
    path.write_bytes(path.read_bytes()[:-3000])
    with pytest.raises(SourceError, match=r"a\.ipc.*cannot be read"):
        read(open_source(path))
    path = save(tmp_path / "a.csv.gz", table(50_000))
    path.write_bytes(path.read_bytes()[:-3000])
    with pytest.raises(SourceError, match=r"a\.csv\.gz.*cannot be read"):
        read(open_source(path))
    (tmp_path / "old.feather").write_bytes(b"FEA1" + bytes(100))
    with pytest.raises(SourceError, match="version 1"):
        open_source(tmp_path / "old.feather")


def test_big_parquet_row_groups_need_little_memory(tmp_path: Path) -> None:
    rows = 1_500_000
    rng = np.random.default_rng(1)
    data = pa.table({"id": rng.permutation(rows), "x": rng.random(rows), "y": rng.random(rows)})
    path = tmp_path / "a.parquet"
    pq.write_table(data, path, row_group_size=rows, compression="none", use_dictionary=False)
    bytes_in_file = path.stat().st_size
    del data
    before = pa.total_allocated_bytes()
    seen = peak = 0
    for batch in open_source(path, batch_rows=4096).batches():
        seen += batch.num_rows
        peak = max(peak, pa.total_allocated_bytes() - before)
    assert seen == rows
    assert bytes_in_file > 30e6
    assert peak < bytes_in_file / 4


# -------------------------------------------------------------------------------- CSV: bad rows

GOOD = "".join(f"{i},name {i},{i}.5\n" for i in range(SAMPLE_ROWS))


def write(path: Path, tail: str | bytes, head: str = "id,name,price\n" + GOOD) -> Path:
    """A file whose types are settled before `tail` begins at line 20,482."""
    path.write_bytes(head.encode() + (tail if isinstance(tail, bytes) else tail.encode()))
    return path


TAIL_LINE = SAMPLE_ROWS + 2
BAD: dict[str, tuple[str | bytes, str, str]] = {
    "text for an integer": ("abc,n,1\n", "id", "'abc' is not of type int64"),
    "fraction for an integer": ("1.5,n,1\n", "id", "'1.5' is not of type int64"),
    "power for an integer": ("1e3,n,1\n", "id", "'1e3'"),
    "hexadecimal": ("0x10,n,1\n", "id", "'0x10'"),
    "beyond int64": ("9223372036854775808,n,1\n", "id", "int64"),
    "text for a number": ("1,n,cheap\n", "price", "'cheap' is not of type double"),
    "too few": ("1,n\n", "price", "3 fields wanted, 2 found"),
    "too many": ("1,n,2,3\n", "", "3 fields wanted, 4 found"),
    "text after a quote": ('1,"n"x,2\n', "name", "after a closing quote"),
    "quote never closed": ('1,"n,2\n', "name", "not closed"),
    "not UTF-8": (b"1,\xff,2\n", "name", "UTF-8"),
}


@pytest.mark.parametrize("case", BAD)
def test_the_first_bad_row_is_named(tmp_path: Path, case: str) -> None:
    tail, column, error = BAD[case]
    path = write(tmp_path / "items.csv", tail)
    source = open_source(path)
    with pytest.raises(BadRowError) as caught:
        read(source)
    message = str(caught.value)
    assert "items.csv" in message
    assert f"line {TAIL_LINE}" in message
    assert error in message
    assert "rejects=path" in message
    if column:
        assert f"column '{column}'" in message
    assert isinstance(caught.value, SourceError)


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
def test_bad_rows_are_collected_and_good_ones_go_on(tmp_path: Path, suffix: str) -> None:
    tail = b"".join(
        (t if isinstance(t, bytes) else t.encode()) + b"7,good,1.5\n" for t, _, _ in BAD.values()
    )
    for name in ("a", "b"):
        path = write(tmp_path / f"{name}.csv", tail)
        if suffix == ".csv.gz":
            (tmp_path / f"{name}.csv.gz").write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()
    rejects = tmp_path / "out" / "rejects.txt"
    rejects.parent.mkdir()
    source = open_source(str(tmp_path / f"*{suffix}"), rejects=rejects)
    for _ in range(2):  # a second reading begins anew
        result = read(source)
        assert result.num_rows == 2 * (SAMPLE_ROWS + len(BAD))
        assert source.rejected_rows == 2 * len(BAD)
        with rejects.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        assert list(rows[0]) == ["file", "line", "column", "error", "text"]
        assert len(rows) == 2 * len(BAD)
        for i, (row, expected) in enumerate(zip(rows, [*BAD.values()] * 2, strict=True)):
            text, column, error = expected
            assert row["file"].endswith(("a" if i < len(BAD) else "b") + suffix)
            assert int(row["line"]) == TAIL_LINE + 2 * (i % len(BAD))
            assert row["column"] == column
            assert error in row["error"]
            if isinstance(text, str):
                assert row["text"] == text.rstrip("\n")


def test_a_row_with_two_bad_values_is_one_rejected_row(tmp_path: Path) -> None:
    source = open_source(write(tmp_path / "a.csv", "x,n,y\n"), rejects=tmp_path / "rejects.txt")
    assert read(source).num_rows == SAMPLE_ROWS
    assert source.rejected_rows == 1


def test_values_of_columns_not_picked_are_not_looked_at(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "x,n,1\n")
    assert read(open_source(path, columns=["price"])).num_rows == SAMPLE_ROWS + 1
    with pytest.raises(BadRowError):
        read(open_source(write(path, "x,n\n"), columns=["price"]))


def test_a_clean_file_leaves_a_rejects_file_with_only_its_header(tmp_path: Path) -> None:
    rejects = tmp_path / "rejects.csv"
    rejects.write_text("from an earlier run")
    source = open_source(save(tmp_path / "a.csv", table(10)), rejects=rejects)
    read(source)
    assert rejects.read_text().strip() == "file,line,column,error,text"
    with pytest.raises(OptionError, match="one of the files read"):
        open_source(tmp_path / "*.csv", rejects=rejects)
    blocked = open_source(tmp_path / "a.csv", rejects=tmp_path / "no folder" / "rejects.csv")
    with pytest.raises(SourceError, match="cannot be written"):
        read(blocked)


def test_an_open_quote_costs_one_line_and_no_row_after_it(tmp_path: Path) -> None:
    after = "".join(f"{i},later {i},1.5\n" for i in range(100_000))
    assert len(after) > 2 * csv_reader.MAX_RECORD_BYTES // 2
    path = write(tmp_path / "a.csv", '7,"open,1.5\n' + after)
    source = open_source(path, rejects=tmp_path / "rejects.txt")
    assert read(source).num_rows == SAMPLE_ROWS + 100_000
    assert source.rejected_rows == 1


def test_lines_count_as_an_editor_counts_them(tmp_path: Path) -> None:
    tail = '1,"two\nlines",1\n\n\r\n2,"three\r\n\r\nlines",2\r\nbad,n,3\r\n   \n'
    source = open_source(write(tmp_path / "a.csv", tail), rejects=tmp_path / "rejects.txt")
    result = read(source)
    assert result.column("name").to_pylist()[-2:] == ["two\nlines", "three\r\n\r\nlines"]
    with (tmp_path / "rejects.txt").open(newline="") as file:
        assert [int(r["line"]) - TAIL_LINE for r in csv.DictReader(file)] == [7, 8]


def test_rows_that_are_too_long_are_rejected_wherever_blocks_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_reader, "MAX_RECORD_BYTES", 3000)
    lengths = [2990, 2998, 2999, 3000, 3001, 3100, 9000]
    text = "a,b\n" + "".join(f"{'x' * (n - 2)},1\n" for n in lengths for _ in range(5))
    path = tmp_path / "a.csv"
    path.write_text(text)
    for block in (16, 999, 4096, 1 << 20):
        monkeypatch.setattr(csv_reader, "BLOCK_BYTES", block)
        source = open_source(path, rejects=tmp_path / "rejects.txt")
        found = [len(v) + 2 for v in read(source).column("a").to_pylist()]
        assert found == [n for n in lengths if n <= 3000 for _ in range(5)]
        assert source.rejected_rows == 15


# ------------------------------------------------------------------------------- CSV: its types


def types_of(tmp_path: Path, *values: str, **options: Any) -> pa.DataType:
    path = tmp_path / "types.csv"
    path.write_text("k,v\n" + "".join(f"1,{v}\n" for v in values))
    return open_source(path, **options).schema.field("v").type


def test_types_are_those_that_every_value_has(tmp_path: Path) -> None:
    assert types_of(tmp_path, "1", "-2", " +3 ", "", "9223372036854775807") == pa.int64()
    assert types_of(tmp_path, "-9223372036854775808") == pa.int64()
    assert types_of(tmp_path, "1", "2.5", "", "1e-3", "nan") == pa.float64()
    assert types_of(tmp_path, "true", "False", "") == pa.bool_()
    assert types_of(tmp_path, "2026-01-31", "") == pa.date32()
    assert types_of(tmp_path, "2026-01-31 10:00:00", "2026-01-31T10:00:00.25") == pa.timestamp("us")
    for values in (
        ("1", "x"),
        ("", ""),
        ("2026-02-30",),
        ("2026-01-31 10:00:00+02:00",),
        ("2026-01-31", "2026-01-31 10:00:00"),
        ("true", "1"),
        ("0x10",),
        ("1_000",),
    ):
        assert types_of(tmp_path, *values) == pa.string(), values


def test_numbers_that_would_merge_different_keys_stay_text(tmp_path: Path) -> None:
    assert types_of(tmp_path, "007", "8") == pa.string()
    assert types_of(tmp_path, "0", "-0", "0.5") == pa.float64()
    assert types_of(tmp_path, "18446744073709551615", "18446744073709551614") == pa.string()


def test_a_misfit_within_the_sample_makes_text_and_later_a_bad_row(tmp_path: Path) -> None:
    rows = [str(i) for i in range(SAMPLE_ROWS + 10)]
    rows[SAMPLE_ROWS - 1] = "abc"
    assert types_of(tmp_path, *rows) == pa.string()
    rows[SAMPLE_ROWS - 1], rows[SAMPLE_ROWS] = "5", "abc"
    rejects = tmp_path / "rejects.txt"
    assert types_of(tmp_path, *rows) == pa.int64()
    source = open_source(tmp_path / "types.csv", rejects=rejects)
    assert read(source).num_rows == SAMPLE_ROWS + 9
    assert source.rejected_rows == 1


def test_the_sample_runs_over_files(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("k,v\n1,2\n")
    (tmp_path / "b.csv").write_text("k,v\n1,2.5\n")
    (tmp_path / "c.csv").write_text("k,v\n1,\n")
    assert open_source(tmp_path).schema.field("v").type == pa.float64()


def test_column_types_are_taken_as_given(tmp_path: Path) -> None:
    assert types_of(tmp_path, "1", column_types={"v": pa.string()}) == pa.string()
    path = tmp_path / "a.csv"
    path.write_text(
        "k,v,w,t\n1,2,1.25, 2026-01-31\n300,5,,\n3,abc,x,2026-01-31\n4,4,2,2026-01-31\n"
    )
    wanted = {
        "k": pa.uint8(),
        "v": pa.int64(),
        "w": pa.decimal128(9, 2),
        "t": pa.timestamp("ms"),
    }
    source = open_source(path, column_types=wanted, rejects=tmp_path / "rejects.txt")
    assert [f.type for f in source.schema] == list(wanted.values())
    assert read(source).column("k").to_pylist() == [1, 4]
    assert source.rejected_rows == 2
    with pytest.raises(UnknownNameError, match="'no'"):
        open_source(path, column_types={"no": pa.int64()})
    with pytest.raises(OptionError, match="text cannot become"):
        open_source(path, column_types={"v": pa.list_(pa.int64())})


# ------------------------------------------------------------------------------ CSV: its dialect


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_the_header_decides_the_separator(tmp_path: Path, separator: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(separator.join(['"a,b;c"', "d", "e"]) + "\n" + separator.join("123") + "\n")
    assert read(open_source(path)).to_pylist() == [{"a,b;c": 1, "d": 2, "e": 3}]


def test_quotes_empty_fields_byte_order_marks_and_missing_last_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(
        b'\xef\xbb\xbf\r\n"id",, t\r\n1,"say ""hi""",x\n"2","",""\r\n,,\n3," pad ",5" nail\n4,,'
    )
    source = open_source(path)
    assert source.schema.names == ["id", "column1", "t"]
    assert [tuple(r.values()) for r in read(source).to_pylist()] == [
        (1, 'say "hi"', "x"),
        (2, "", ""),
        (None, None, None),
        (3, " pad ", '5" nail'),
        (4, None, None),
    ]


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "is empty"),
        (b"\n\n", "is empty"),
        (b"a,b\r1,2\r", "carriage return"),
        ("a,b\n1,2\n".encode("utf-16"), "UTF-16"),
        (b"a,\xff\n", "not UTF-8"),
        (b'a,"b\n', "header"),
        (b"a,a\n1,2\n", "two columns 'a'"),
        (b"x" * (1 << 20), "first line"),
    ],
)
def test_headers_that_cannot_be_read(tmp_path: Path, raw: bytes, message: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(raw)
    with pytest.raises(SourceError, match=message):
        open_source(path)


TEXT = st.text(alphabet=st.sampled_from('ab1,"\n\r ;é\N{SNOWMAN}\N{GRINNING FACE}'), max_size=6)
EVERY_BLOCK = (8, 13, 64, 1 << 20)
in_one_folder = settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@in_one_folder
@given(rows=st.lists(st.tuples(TEXT, TEXT, st.integers(-9, 9)), max_size=12))
def test_what_pythons_writer_writes_is_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: list[tuple[str, str, int]]
) -> None:
    path = tmp_path / "a.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_NONNUMERIC)
        writer.writerow(["a", "b", "c"])
        writer.writerows(rows)
    types = {"a": pa.string(), "b": pa.string(), "c": pa.int64()}
    for block in EVERY_BLOCK:
        monkeypatch.setattr(csv_reader, "BLOCK_BYTES", block)
        found = read(open_source(path, column_types=types, batch_rows=5))
        assert [tuple(r.values()) for r in found.to_pylist()] == rows


@in_one_folder
@given(raw=st.lists(st.sampled_from([*b'a1,",",\n\r\n"', 0xC3, 0xA9]), max_size=80).map(bytes))
def test_any_bytes_are_rows_or_rejects_the_same_for_every_block_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raw: bytes
) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"a,b\n" + raw)
    monkeypatch.setattr(csv_reader, "MAX_RECORD_BYTES", 40)
    results = []
    for block in EVERY_BLOCK:
        monkeypatch.setattr(csv_reader, "BLOCK_BYTES", block)
        rejects = tmp_path / "rejects.txt"
        source = open_source(path, rejects=rejects)
        rows = read(source)
        rows.validate(full=True)
        results.append((rows.schema, rows.to_pylist(), source.rejected_rows, rejects.read_bytes()))
    assert all(r == results[0] for r in results[1:])
    # Nothing vanishes: without quotes, every line that is not empty is a row or a reject.
    if b'"' not in raw:
        lines = [line for line in raw.split(b"\n") if line.removesuffix(b"\r")]
        assert len(results[0][1]) + results[0][2] == len(lines)


def test_a_clean_file_reads_as_duckdb_reads_it(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    rows = 60_000
    path = tmp_path / "a.csv"
    expected = pa.table(
        {
            "id": rng.integers(-(2**62), 2**62, rows),
            "x": rng.normal(size=rows) * 10.0 ** rng.integers(-200, 200, rows),
            "day": pa.array(rng.integers(0, 40_000, rows).astype(np.int32)).cast(pa.date32()),
            "name": [f'it"em, {v}\n' if v % 7 == 0 else f"item {v}" for v in range(rows)],
            "n": pa.array(rng.integers(0, 9, rows), mask=rng.random(rows) < 0.3),
        }
    )
    duckdb.from_arrow(expected).write_csv(str(path))
    assert read(open_source(path)).equals(expected)


def test_all_errors_are_ours(tmp_path: Path) -> None:
    assert issubclass(BadRowError, SourceError)
    assert issubclass(SourceError, SemiStreamError)
    source = open_source(write(tmp_path / "a.csv", "y" * 5000 + ",n,1\n"))
    with pytest.raises(BadRowError) as caught:
        read(source)
    assert len(str(caught.value)) < 1000, "long rows are shortened in messages"
