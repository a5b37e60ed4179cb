"""Masters built by Spark: the same bytes as those built in one process."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import semistream as ss
from semistream.core.errors import OptionError, StoreError, UnknownNameError
from semistream.spark import build_master
from semistream.spark.build import _Pack, _Write
from semistream.spark.schemas import arrow_schema
from semistream.store.manifest import read_manifest
from semistream.store.writing import BuildPlan

ROWS = 3000


def table(rows: int = ROWS, *, nulls: bool = True) -> pa.Table:
    rng = np.random.default_rng(7)
    keys = rng.permutation(rows)
    moment = dt.datetime(2026, 1, 31, tzinfo=dt.UTC)
    return pa.table(
        {
            "name": [f"n{k}" * (1 + k % 5) for k in keys.tolist()],
            "id": pa.array(keys, mask=(keys % 97 == 0) if nulls else None),
            "price": pa.array(keys * 0.25, mask=rng.random(rows) < 0.1),
            "since": pa.array([moment] * rows, pa.timestamp("us", "UTC")),
            "tags": [[str(k)] * (k % 3) for k in keys.tolist()],
        }
    )


def files_of(path: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file()
    }


def both(spark: SparkSession, folder: Path, data: pa.Table, key: Any, **options: Any) -> Any:
    """The same rows, built by Spark and in this process."""
    df = spark.createDataFrame(data).repartition(3)
    build_master(folder / "spark.master", df, key, **options)
    plain = data.cast(arrow_schema(df.schema))
    ss.build_master(folder / "plain.master", plain, key, **options)
    return folder / "spark.master", folder / "plain.master"


@pytest.mark.parametrize(
    ("key", "options"),
    [
        ("id", {"shards": 1}),
        ("id", {"shards": 5, "fill": 0.7}),
        (["name", "id"], {"shards": 3, "page_size": 4096}),
        ("name", {"shards": 2, "hash_bits": 6}),
    ],
)
def test_the_same_bytes(spark: SparkSession, tmp_path: Path, key: Any, options: Any) -> None:
    built, expected = both(spark, tmp_path, table(), key, **options)
    found, wanted = files_of(built), files_of(expected)
    assert found.keys() == wanted.keys()
    for name in wanted:
        assert found[name] == wanted[name], name
    assert not list(tmp_path.glob(".*"))


def test_repeated_numbers_as_keys(spark: SparkSession, tmp_path: Path) -> None:
    # Rows of one number lie in any order: all but the pages' bytes is the same.
    data = pa.table({"id": np.arange(ROWS) % 40, "value": np.arange(ROWS)})
    built, expected = both(spark, tmp_path, data, "id", shards=3)
    assert read_manifest(built) == read_manifest(expected)
    stream = pa.table({"id": np.arange(50)})
    joined = [
        sorted(pa.Table.from_batches(ss.join(stream, master, "id")).to_pylist(), key=str)
        for master in (built, expected)
    ]
    assert len(joined[0]) == ROWS
    assert joined[0] == joined[1]


def test_long_rows_decide_the_page_size(spark: SparkSession, tmp_path: Path) -> None:
    names = pa.array(["x" * (20_000 if number == 7 else 3) for number in range(300)])
    data = table(300).set_column(0, "name", names)
    built, expected = both(spark, tmp_path, data, "id", shards=4)
    assert read_manifest(built).page_bytes > 8192
    assert files_of(built) == files_of(expected)


@pytest.mark.parametrize("rows", [0, 1])
def test_hardly_any_rows(spark: SparkSession, tmp_path: Path, rows: int) -> None:
    built, expected = both(spark, tmp_path, table(nulls=False).slice(0, rows), "id", shards=3)
    assert files_of(built) == files_of(expected)


def test_only_null_keys(spark: SparkSession, tmp_path: Path) -> None:
    data = pa.table({"id": pa.array([None] * 5, pa.int64()), "value": range(5)})
    built, expected = both(spark, tmp_path, data, "id", shards=2)
    assert files_of(built) == files_of(expected)
    assert read_manifest(built).null_keys == 5


def test_a_shard_for_each_core(spark: SparkSession, tmp_path: Path) -> None:
    build_master(tmp_path / "m", spark.range(1000), "id")
    assert len(read_manifest(tmp_path / "m").shards) == spark.sparkContext.defaultParallelism


def test_attempts_do_not_touch_each_other(tmp_path: Path) -> None:
    """A task that fails half-way, one that is repeated and one that runs twice at a time."""
    data = table()
    options: dict[str, Any] = {"page_size": 4096, "shards": 2, "fill": 1.0, "hash_bits": 64}
    plan = BuildPlan.of(data.schema, "id", **options)
    pack = _Pack(plan, tmp_path / "attempts")
    pack.attempts.mkdir()
    batches = data.to_batches(max_chunksize=500)

    def broken() -> Iterator[pa.RecordBatch]:
        yield from batches[:3]
        raise OSError("the executor is gone")

    with pytest.raises(OSError, match="is gone"):
        list(pack(broken()))
    list(pack(iter(batches)))
    parcels = pa.Table.from_batches(pack(iter(batches)))
    assert sum(parcels["null_keys"].to_pylist()) == data["id"].null_count
    wanted_parcels = parcels.filter(pa.compute.is_valid(parcels["shard"])).to_batches()
    write = _Write(plan, 4096, 1 << 30, pack.attempts)
    assert list(write(iter([]))) == []
    first, second = (
        [row for batch in write(iter(wanted_parcels)) for row in batch.to_pylist()] for _ in "12"
    )
    assert len(list(write.attempts.iterdir())) == 5
    ss.build_master(tmp_path / "plain", data, "id", **options)
    wanted = files_of(tmp_path / "plain" / "v1")
    for results in (first, second):
        assert [row["shard"] for row in results] == [0, 1]
        found = files_of(write.attempts / results[0]["attempt"])
        assert found == {name: wanted[name] for name in ("shard-0000.pages", "shard-0001.pages")}
    assert first[0]["attempt"] != second[0]["attempt"]


def test_frequency_order(spark: SparkSession, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    data = pa.table({"id": rng.permutation(ROWS) // 2, "sold": rng.zipf(1.5, ROWS).astype(float)})
    built, expected = both(spark, tmp_path, data, "id", shards=2, frequency="sold")
    found, wanted = files_of(built), files_of(expected)
    manifest = read_manifest(built)
    assert (manifest.frequency, manifest.class_parts) == ("sold", 1)
    # Rows of one number lie in any order: all but the pages' bytes is the same.
    same = {name for name in wanted if "shard" not in name}
    assert {name: found[name] for name in same} == {name: wanted[name] for name in same}
    stream = pa.table({"id": np.arange(ROWS)})
    for path in (built, expected):
        rows = ss.join(stream, path, on="id", algorithm="xhybridjoin", memory="16MB")
        table = pa.Table.from_batches(rows).sort_by([("id", "ascending"), ("sold", "ascending")])
        assert table.equals(data.sort_by([("id", "ascending"), ("sold", "ascending")]))


def test_a_folder_that_executors_do_not_see(tmp_path: Path) -> None:
    plan = BuildPlan.of(table().schema, "id", page_size=4096, shards=2, fill=1.0, hash_bits=64)
    with pytest.raises(StoreError, match=r"cannot write in .* Hint: the path must lead"):
        next(_Pack(plan, tmp_path / "not" / "there")(iter(table().to_batches())))


def test_files_of_other_attempts_are_left_behind(spark: SparkSession, tmp_path: Path) -> None:
    target = tmp_path / "m"

    def leave_rubbish(batches: Any) -> Any:
        (folder,) = tmp_path.glob(".m.building-*")
        rubbish = folder / "attempts" / "lost"
        rubbish.mkdir(exist_ok=True)
        (rubbish / "shard-0000.pages").write_bytes(b"half a page")
        yield from batches

    df = spark.range(1000, numPartitions=1).mapInArrow(leave_rubbish, "id bigint")
    build_master(target, df, "id", shards=2)
    assert files_of(target).keys() == {
        "MANIFEST.json",
        "v1/MANIFEST.json",
        "v1/index",
        "v1/shard-0000.pages",
        "v1/shard-0001.pages",
    }
    assert ss.open_master(target).manifest.rows == 1000


def test_a_build_that_fails_leaves_nothing(spark: SparkSession, tmp_path: Path) -> None:
    bad = spark.range(100).withColumn("bad", F.raise_error(F.lit("spoilt")).cast("string"))
    with pytest.raises(Exception, match="spoilt"):
        build_master(tmp_path / "m", bad, "id")
    assert list(tmp_path.iterdir()) == []


def test_options_are_checked(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.range(10)
    with pytest.raises(UnknownNameError, match="known: id"):
        build_master(tmp_path / "m", df, "ident")
    with pytest.raises(OptionError, match="shards=0"):
        build_master(tmp_path / "m", df, "id", shards=0)
    with pytest.raises(OptionError, match="stream"):
        build_master(tmp_path / "m", spark.readStream.format("rate").load(), "value")
    (tmp_path / "there").mkdir()
    with pytest.raises(StoreError, match="exists already"):
        build_master(tmp_path / "there", df, "id")
    long = df.withColumn("text", F.repeat(F.lit("x"), 5000))
    with pytest.raises(StoreError, match="does not fit a page of 4096"):
        build_master(tmp_path / "m", long, "id", page_size=4096)
    assert [left.name for left in tmp_path.iterdir()] == ["there"]
