"""The transformations of `semistream.etl` on DataFrames, against SQL, with restarts and replays."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import semistream as ss
from semistream.core.errors import OptionError, SemiStreamError, SourceError
from semistream.etl import Dimension, new_lookup, new_seen
from semistream.spark import (
    duplicates,
    enrich,
    maintain,
    read_master,
    read_sink,
    similar,
    snapshot_difference,
    star,
    stats,
    surrogate_keys,
)
from semistream.store.apply import Applied
from semistream.store.inspect import master_rows
from semistream.store.manifest import read_manifest
from tests.spark.streams import FileStream, until


def customers(keys: Any, version: int = 1) -> pa.Table:
    keys = np.asarray(keys)
    return pa.table(
        {"customer": keys, "name": [f"c{k}" for k in keys], "version": np.full(len(keys), version)}
    )


def orders(first: int, keys: list[int | None]) -> pa.Table:
    numbers = np.arange(first, first + len(keys))
    return pa.table({"number": numbers, "customer": pa.array(keys, pa.int64())})


SCHEMA = orders(0, [1]).schema


def rows_in(path: Path, *columns: str) -> Counter[tuple[Any, ...]]:
    with ss.open_master(path) as master:
        return Counter(
            tuple(row[column] for column in columns)
            for batch in master_rows(master)
            for row in batch.to_pylist()
        )


def query(sql: str, tables: dict[str, pa.Table]) -> Counter[tuple[Any, ...]]:
    with duckdb.connect() as connection:
        for name, table in tables.items():
            connection.register(name, table)
        return Counter(connection.sql(sql).fetchall())


def forget_last_batch(stream: FileStream, name: str) -> None:
    """As if the process had died before the last micro-batch reached the sink."""
    commits = stream.directory / f"{name}.checkpoint" / "commits"
    last = max(int(file.name) for file in commits.iterdir() if file.name.isdigit())
    for folder in (commits, stream.directory / name / "_spark_metadata"):
        (folder / f"{last}").unlink(missing_ok=True)


def test_a_master_is_read(spark: SparkSession, tmp_path: Path) -> None:
    ss.build_master(tmp_path / "m", customers(range(5000)), "customer", shards=3)
    ss.apply_changes(tmp_path / "m", customers(range(4990, 5010), 2), op=None)
    found = read_master(spark, tmp_path / "m").groupBy("version").count().collect()
    assert {row[0]: row[1] for row in found} == {1: 4990, 2: 20}
    old = read_master(spark, tmp_path / "m", version=1)
    assert old.agg(f.max("version"), f.count("*")).first() == (1, 5000)


def test_changes_keep_a_master_up_to_date(spark: SparkSession, tmp_path: Path) -> None:
    """Each micro-batch of changes is a version, applied once, also when it is repeated."""
    path = tmp_path / "m"
    ss.build_master(path, customers(range(100)), "customer", fill=0.8)
    feed = FileStream(
        spark, tmp_path / "feed", customers([1]).schema.append(pa.field("op", pa.string())).append(
            pa.field("lsn", pa.int64())
        )
    )  # fmt: skip

    def send(keys: list[int], ops: list[str], version: int, lsn: list[int]) -> None:
        table = customers(keys, version).append_column("op", pa.array(ops))
        feed.send(table.append_column("lsn", pa.array(lsn)))

    def applied() -> None:
        query = maintain(
            path, feed.frame(), checkpoint=feed.directory / "cp", order_by="lsn", availableNow=True
        )
        query.awaitTermination()

    send([1, 200, 3, 1], ["update", "insert", "delete", "delete"], 2, [2, 1, 3, 1])
    send([5], ["d"], 3, [9])
    applied()
    assert read_manifest(path).version == 3
    wanted = {key: 1 for key in range(100) if key not in (1, 3, 5)} | {1: 2, 200: 2}
    assert rows_in(path, "customer", "version") == Counter(wanted.items())
    # The last micro-batch again: the master knows it.
    (feed.directory / "cp" / "commits" / "1").unlink()
    ss.apply_changes(path, customers([5], 7), op=None)
    applied()
    assert rows_in(path, "customer", "version")[5, 7] == 1
    assert read_manifest(path).version == 4
    with pytest.raises(OptionError, match="no stream"):
        maintain(path, spark.createDataFrame(customers([1])), checkpoint=tmp_path / "x")
    with pytest.raises(OptionError, match="no column 'what'"):
        maintain(path, feed.frame(), checkpoint=tmp_path / "x", op="what")


def test_a_stream_sees_each_version_whole(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "m"
    ss.build_master(path, customers(range(3000)), "customer", fill=0.8)
    stream = FileStream(spark, tmp_path / "s", SCHEMA)
    for version in range(1, 4):
        if version > 1:
            ss.apply_changes(path, customers(range(3000), version), op=None)
        stream.send(orders(10_000 * version, list(range(0, 3300, 3))))
        query = stream.start(enrich(stream.frame(), path, "customer", how="left"), "out")
        query.awaitTermination()
        assert stats(query).version == version
    result = spark.read.parquet(str(stream.directory / "out")).toArrow()
    seen = Counter((row["number"] // 10_000, row["version"]) for row in result.to_pylist())
    assert seen == {(v, one): n for v in (1, 2, 3) for one, n in ((v, 1000), (None, 100))}


def test_surrogates_of_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    new_lookup(path, {"source": pa.string(), "id": pa.int64()}, shards=2)
    random = np.random.default_rng(4)
    schema = pa.schema({"n": pa.int64(), "source": pa.string(), "id": pa.int64()})
    stream = FileStream(spark, tmp_path / "s", schema)

    def run() -> Counter[tuple[Any, ...]]:
        out = surrogate_keys(stream.frame(), path, ["source", "id"], keep=True, memory="8MB")
        stream.start(out, "out").awaitTermination()
        result = spark.read.parquet(str(stream.directory / "out")).toArrow()
        return Counter(tuple(row.values()) for row in result.to_pylist())

    for part in range(3):
        rows = 2000
        sources = [["A", "B", None][s] for s in random.integers(0, 3, rows)]
        ids = random.zipf(1.3, rows) % 300 + 100 * part
        stream.send(pa.table({"n": np.arange(rows) + rows * part, "source": sources, "id": ids}))
    first = run()
    keys = rows_in(path, "source", "id", "surrogate")
    assert len({key for *_, key in keys}) == len(keys) == keys.total()
    forget_last_batch(stream, "out")
    assert run() == first, "a replay gives the same surrogates"
    assert rows_in(path, "source", "id", "surrogate") == keys
    tables = {
        "sent": pa.concat_tables(stream.sent),
        "lookup": pa.Table.from_pylist([{"source": s, "id": i, "key": k} for s, i, k in keys]),
    }
    assert first == query(
        "select sent.*, key from sent left join lookup using (source, id)", tables
    )


def test_duplicates_of_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "seen"
    new_seen(path, {"customer": pa.int64()})
    stream = FileStream(spark, tmp_path / "s", SCHEMA)
    random = np.random.default_rng(8)

    def run() -> pa.Table:
        out = duplicates(stream.frame(), path, "customer", keep="flag", memory="8MB")
        stream.start(out, "out").awaitTermination()
        return spark.read.parquet(str(stream.directory / "out")).toArrow()

    for part in range(3):
        keys = [None if k == 0 else int(k) for k in random.zipf(1.4, 1000) % 500]
        stream.send(orders(1000 * part, keys))
    first = run()
    forget_last_batch(stream, "out")
    again = run()
    assert again.sort_by("number").equals(first.sort_by("number")), "no duplicate of itself"
    sent = {"sent": pa.concat_tables(stream.sent)}
    (everyone,) = query(
        "select count(distinct customer) + count(*) - count(customer) from sent", sent
    )
    assert first.num_rows == 3000
    assert first["is_duplicate"].to_pylist().count(False) == everyone[0]
    kept = first.filter(~pa.compute.field("is_duplicate"))
    # Of each key the winner came in the earliest micro-batch that has it.
    earliest = dict(
        query("select customer, min(number // 1000) from sent group by 1", sent).elements()
    )
    for row in kept.to_pylist():
        if row["customer"] is not None:
            assert row["number"] // 1000 == earliest[row["customer"]]


def test_similar_rows_of_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    """Rows with a like in an earlier micro-batch or before them in their own, as SQL has it."""
    schema = pa.schema({"number": pa.int64(), "at": pa.int64(), "value": pa.float64()})
    path = tmp_path / "seen"
    ss.build_master(path, schema.empty_table(), "at", fill=0.8)
    stream = FileStream(spark, tmp_path / "s", schema)
    random = np.random.default_rng(6)
    like = ss.band("at", "at", width=3) & ss.band("value", "value", width=0.5)

    def run() -> pa.Table:
        out = similar(stream.frame(), path, like, keep="flag", memory="8MB")
        stream.start(out, "out").awaitTermination()
        return spark.read.parquet(str(stream.directory / "out")).toArrow().sort_by("number")

    for part in range(3):
        at = pa.array([None if k == 7 else k for k in random.integers(0, 900, 120).tolist()])
        number = np.arange(120 * part, 120 * part + 120)
        stream.send(pa.table([number, at, random.uniform(0, 5, 120)], schema=schema))
    first = run()
    forget_last_batch(stream, "out")
    assert run().equals(first), "no like of itself in a replay"
    with ss.open_master(path) as master:
        stored = sum(1 for row in pa.concat_tables(stream.sent)["at"] if row.is_valid)
        assert master.rows == stored, "each is remembered once"
    wanted = query(
        """select a.*, exists(from sent b where b.number < a.number and abs(a.at - b.at) <= 3
        and abs(a.value - b.value) <= 0.5) from sent a""",
        {"sent": pa.concat_tables(stream.sent)},
    )
    assert Counter(tuple(row.values()) for row in first.to_pylist()) == wanted
    assert 20 < first["is_duplicate"].to_pylist().count(True) < 300
    with pytest.raises(SemiStreamError, match="nowhere"):
        similar(stream.frame(), path, ss.band("nowhere", "at", width=3))


def test_a_snapshot_becomes_changes(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "m"
    ss.build_master(path, customers(range(1000)), "customer", shards=2, fill=0.8)
    new = pa.concat_tables([customers(range(300, 900)), customers(range(900, 1200), 2)])
    changes = snapshot_difference(spark.createDataFrame(new), path, memory="8MB").toArrow()
    counts = Counter(changes["op"].to_pylist())
    assert counts == {"insert": 200, "update": 100, "delete": 300}
    ss.apply_changes(path, changes)
    assert rows_in(path, *new.column_names) == Counter(
        tuple(row.values()) for row in new.to_pylist()
    )


def test_a_snapshot_that_comes_as_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    """New and changed rows as SQL has them, in a replay too; for deleted ones it has no end."""
    path = tmp_path / "m"
    old = customers(range(1000))
    ss.build_master(path, old, "customer", shards=2)
    stream = FileStream(spark, tmp_path / "s", old.schema)
    with pytest.raises(OptionError, match="no end"):
        snapshot_difference(stream.frame(), path)

    def run() -> Counter[tuple[Any, ...]]:
        wanted = ["insert", "update"]
        out = snapshot_difference(stream.frame(), path, changes=wanted, memory="8MB")
        stream.start(out, "out").awaitTermination()
        result = spark.read.parquet(str(stream.directory / "out")).toArrow()
        return Counter(tuple(row.values()) for row in result.to_pylist())

    for part in (customers(range(500, 800)), customers(range(900, 1100), 2)):
        nameless = pa.array([None if n % 9 == 0 else f"c{n}" for n in part["customer"].to_pylist()])
        stream.send(part.set_column(1, "name", nameless))
    first = run()
    forget_last_batch(stream, "out")
    assert run() == first
    assert first == query(
        """select new.*, case when old.customer is null then 'insert' else 'update' end
        from new left join old using (customer) where old.customer is null
        or old.name is distinct from new.name or old.version <> new.version""",
        {"old": old, "new": pa.concat_tables(stream.sent)},
    )


def test_changes_that_make_no_sense(spark: SparkSession, tmp_path: Path) -> None:
    """They end the feed with an error that names the row, and change nothing; or are left out."""
    path = tmp_path / "m"
    ss.build_master(path, customers(range(10)), "customer")
    schema = customers([1]).schema.append(pa.field("op", pa.string()))
    feed = FileStream(spark, tmp_path / "feed", schema)
    odd = customers([1, 2, 3], 2).append_column("op", pa.array(["update", "truncate", "delete"]))
    keyless = odd.set_column(0, "customer", pa.array([5, None, 6], pa.int64()))
    feed.send(odd)
    feed.send(keyless.set_column(3, "op", pa.array(["update"] * 3)).cast(schema))

    def applied(**options: Any) -> Any:
        return maintain(
            path, feed.frame(), checkpoint=feed.directory / "cp", availableNow=True, **options
        )

    with pytest.raises(StreamingQueryException, match="has the operation 'truncate'"):
        applied().awaitTermination()
    assert read_manifest(path).version == 1
    done: list[Applied] = []
    applied(bad="skip", on_applied=done.append).awaitTermination()
    rejected = [dict(one.changes.rejected) for one in done]
    assert rejected == [{"unknown operation": 1}, {"null in the key": 1}]
    wanted = {key: 2 if key in (1, 5, 6) else 1 for key in range(10) if key != 3}
    assert rows_in(path, "customer", "version") == Counter(wanted.items())


def test_a_star_with_dead_letters(spark: SparkSession, tmp_path: Path) -> None:
    """A row that one master gave up is not looked up by the next, and not lost there."""
    ss.build_master(tmp_path / "c", customers(range(100)), "customer")
    levels = pa.table({"version": [1], "level": ["gold"]})
    ss.build_master(tmp_path / "levels", levels, "version")
    numbers = pa.table({"number": np.arange(0, 300, 2), "even": ["yes"] * 150})
    ss.build_master(tmp_path / "n", numbers, "number")
    sent = orders(0, [k if k % 10 else None for k in range(200)])
    out = star(
        spark.createDataFrame(sent),
        [
            Dimension(tmp_path / "c", "customer", missing="dead", options={"memory": "8MB"}),
            Dimension(tmp_path / "levels", "version", options={"memory": "8MB"}),
            Dimension(tmp_path / "n", "number", missing="drop", options={"memory": "8MB"}),
        ],
        dead_letters="problem",
    ).toArrow()
    wanted = query(
        """select sent.number, sent.customer, name, 'gold', 'yes', null from sent
        join known using (customer) where number % 2 = 0
        union all select number, customer, null, null, null, 'the key is null' from sent
        where customer is null
        union all select number, customer, null, null, null, 'no partner in c' from sent
        where customer >= 100""",
        {"sent": sent, "known": customers(range(100))},
    )
    columns = ["number", "customer", "name", "level", "even", "problem"]
    found = [tuple(row.values()) for row in out.select(columns).to_pylist()]
    assert Counter(found) == wanted


def test_late_dimensions(spark: SparkSession, tmp_path: Path) -> None:
    """Rows wait for their key as state: released once when it comes, given up after the time."""
    path = tmp_path / "m"
    ss.build_master(path, customers(range(10)), "customer", fill=0.8)
    stream = FileStream(spark, tmp_path / "s", SCHEMA)
    shuffles = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", 2)

    def start(retry_for: str) -> Any:
        out = enrich(
            stream.frame(), path, "customer", missing="retry", retry_for=retry_for,
            dead_letters="problem", memory="8MB",
        )  # fmt: skip
        return stream.start(out, "out", processingTime="300 milliseconds")

    def arrived() -> dict[int, str | None]:
        try:
            rows = read_sink(stream.directory / "out").to_table().to_pylist()
        except SourceError:  # no row has arrived yet
            return {}
        assert len({row["number"] for row in rows}) == len(rows), "released at most once"
        return {row["number"]: row["problem"] for row in rows}

    try:
        stream.send(orders(0, [1, 2, None, 50, 51, 52, 50]))
        query = start("1 hour")
        until(lambda: len(arrived()) == 3, query)
        assert arrived() == {0: None, 1: None, 2: "the key is null"}
        ss.apply_changes(path, customers([50]), op=None)
        until(lambda: len(arrived()) == 5, query)
        did = stats(query).join
        assert did.rows_waiting == 2
        query.stop()
        # A restart: rows that wait are in the checkpoint; their time is what it was.
        ss.apply_changes(path, customers([51]), op=None)
        query = start("1 second")
        until(lambda: len(arrived()) == 6, query)
        stream.send(orders(100, [77, 3]))
        until(lambda: len(arrived()) == 8, query)
        query.stop()
        assert arrived() == {
            0: None, 1: None, 2: "the key is null", 3: None, 6: None, 4: None, 101: None,
            100: "no partner in m within 1 second",
        }  # fmt: skip
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", shuffles or "200")
        shutil.rmtree(stream.directory, ignore_errors=True)


def test_rules_that_do_not_go_together(spark: SparkSession, tmp_path: Path) -> None:
    ss.build_master(tmp_path / "m", customers(range(10)), "customer")
    df = spark.createDataFrame(orders(0, [1]))
    for options, text in (
        ({"missing": "retry", "retry_for": "1 s", "dead_letters": "p"}, "for streams"),
        ({"missing": "dead"}, "dead_letters"),
        ({"missing": "dead", "how": "left", "dead_letters": "p"}, "say the same twice"),
        ({"missing": "sometimes"}, "not a rule"),
        ({"retry_for": "1 s"}, "goes with"),
    ):
        with pytest.raises(OptionError, match=text):
            enrich(df, tmp_path / "m", "customer", **options)  # type: ignore[arg-type]
