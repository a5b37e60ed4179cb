"""Joins under conditions other than equal keys, against DuckDB."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import semistream as ss
from semistream.checks.driving import Run, cut
from semistream.core.conditions import Condition
from semistream.core.errors import BudgetError, OptionError, SchemaError, UnknownNameError
from semistream.core.join import HOWS, Snapshot
from semistream.joins.registry import JOINS

TAKERS = [name for name, join in JOINS.items() if join.takes_conditions]

START = dt.datetime(2026, 1, 1)


def nullable(rng: np.random.Generator, values: Any, type_: pa.DataType | None = None) -> pa.Array:
    return pa.array(values, type_, mask=rng.random(len(values)) < 0.1)


def times(minutes: Any) -> list[dt.datetime]:
    return [START + dt.timedelta(minutes=int(minute)) for minute in minutes]


def stream_table(rows: int = 400) -> pa.Table:
    rng = np.random.default_rng(1)
    number = rng.integers(-50, 250, rows)
    floats = rng.integers(0, 200, rows) / 2
    floats[:3] = [np.nan, -0.0, np.inf]
    return pa.table(
        {
            "event": np.arange(rows),
            "id": nullable(rng, rng.integers(0, 120, rows)),
            "price": nullable(rng, number),
            "small": nullable(rng, rng.integers(-100, 100, rows).astype(np.int8)),
            "weight": nullable(rng, floats),
            "cost": nullable(rng, [Decimal(int(n)) / 4 for n in number], pa.decimal128(12, 2)),
            "time": nullable(rng, times(number), pa.timestamp("us")),
            "name": nullable(rng, [f"name {n % 40}" * (1 + n % 3) for n in number]),
        }
    )


def master_table(rows: int = 300) -> pa.Table:
    rng = np.random.default_rng(2)
    low = rng.integers(0, 200, rows)
    floats = rng.integers(0, 200, rows) / 2
    floats[:2] = [np.nan, 0.0]
    return pa.table(
        {
            "k": nullable(rng, rng.integers(0, 100, rows)),
            "low": nullable(rng, low),
            "high": nullable(rng, low + rng.integers(-2, 12, rows)),
            "limit": nullable(rng, floats),
            "cap": nullable(rng, [Decimal(int(n)) / 2 for n in low], pa.decimal128(9, 1)),
            "since": nullable(rng, times(low), pa.timestamp("ms")),
            "day": nullable(rng, [(START + dt.timedelta(days=int(n) - 50)).date() for n in low]),
            "label": nullable(rng, [f"name {n % 50}" for n in low]),
            "row": np.arange(rows),
        }
    )


def far(stream: pa.RecordBatch, master: pa.RecordBatch) -> pa.Array:
    """Not a range, and not a comparison either."""
    rest = pc.subtract(
        stream["price"], pc.multiply(pc.divide(stream["price"], pa.scalar(7)), pa.scalar(7))
    )
    return pc.equal(pc.abs(rest), pc.bit_wise_and(master["low"], pa.scalar(7)))


CASES: dict[str, tuple[Condition, str]] = {
    "between": (ss.between("price", "low", "high"), "s.price BETWEEN m.low AND m.high"),
    "open": (
        ss.between("price", "low", "high", closed="neither"),
        "s.price > m.low AND s.price < m.high",
    ),
    "above": (ss.compare("weight", ">", "limit"), "s.weight > m.limit"),
    "not below": (ss.compare("small", ">=", "low"), "s.small >= m.low"),
    "unequal": (ss.compare("small", "!=", "low"), "s.small <> m.low"),
    "same": (ss.compare("name", "==", "label"), "s.name = m.label"),
    "mixed types": (ss.compare("price", "<", "limit"), "s.price < m.limit"),
    "decimals": (
        ss.compare("cost", "<=", "cap") & ss.compare("cost", ">", "cap", offset=-3),
        "s.cost <= m.cap AND s.cost > m.cap - 3",
    ),
    "band": (ss.band("price", "low", width=3), "abs(s.price - m.low) <= 3"),
    "one side": (
        ss.band("weight", "limit", below=1.5),
        "s.weight BETWEEN m.limit - 1.5 AND m.limit",
    ),
    "times": (
        ss.band("time", "since", width=dt.timedelta(minutes=5)),
        "s.time BETWEEN m.since - INTERVAL 5 MINUTE AND m.since + INTERVAL 5 MINUTE",
    ),
    "days": (ss.compare("time", ">=", "day"), "s.time >= m.day"),
    "key": (ss.band("price", "k", width=1), "s.price BETWEEN m.k - 1 AND m.k + 1"),
    "text": (
        ss.compare("name", ">=", "label") & ss.compare("price", "==", "low"),
        "s.name >= m.label AND s.price = m.low",
    ),
    "function": (
        ss.predicate(far, stream=["price"], master=["low"]),
        "abs(s.price % 7) = (m.low & 7)",
    ),
    "function of text": (
        ss.predicate(
            lambda s, m: pc.equal(pc.utf8_length(s["name"]), pc.utf8_length(m["label"])),
            stream=["name"],
            master=["label"],
        )
        & ss.between("price", "low", "high"),
        "length(s.name) = length(m.label) AND s.price BETWEEN m.low AND m.high",
    ),
}


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("conditions") / "master"
    ss.build_master(path, master_table(), "k", page_size=4096)
    return path


@pytest.fixture(scope="module")
def hashed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A master whose key is text, with hashes that collide."""
    path = tmp_path_factory.mktemp("conditions") / "hashed"
    ss.build_master(path, master_table(), "label", page_size=4096, hash_bits=3)
    return path


@pytest.fixture(scope="module")
def database() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(":memory:") as connection:
        connection.register("s", stream_table())
        # Rows without a key are not stored: a master has no place for them.
        connection.register("m", master_table().filter(pc.field("k").is_valid()))
        connection.register("h", master_table().filter(pc.field("label").is_valid()))
        yield connection


def expected(
    database: duckdb.DuckDBPyConnection, where: str, how: str, columns: list[str], table: str = "m"
) -> list[tuple[Any, ...]]:
    chosen = ", ".join(["s.*", *(f"m.{name}" for name in columns if how in ("inner", "left"))])
    query = {
        "inner": f"SELECT {chosen} FROM s JOIN {table} m ON {where}",
        "left": f"SELECT {chosen} FROM s LEFT JOIN {table} m ON {where}",
        "semi": f"SELECT s.* FROM s WHERE EXISTS (SELECT 1 FROM {table} m WHERE {where})",
        "anti": f"SELECT s.* FROM s WHERE NOT EXISTS (SELECT 1 FROM {table} m WHERE {where})",
    }[how]
    return sorted(database.execute(query).fetchall(), key=repr)


def rows_of(table: pa.Table) -> list[tuple[Any, ...]]:
    return sorted(zip(*(c.to_pylist() for c in table.columns), strict=True), key=repr)


def joined(master: Path, algorithm: str, memory: Any, **arguments: Any) -> pa.Table:
    batches = stream_table().to_batches(max_chunksize=90)
    return ss.join(batches, master, algorithm=algorithm, memory=memory, **arguments).read_all()


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("name", CASES)
def test_condition_alone(
    name: str, how: str, master: Path, database: duckdb.DuckDBPyConnection
) -> None:
    condition, where = CASES[name]
    columns = master_table().column_names
    table = joined(master, "meshjoin", "2MB", condition=condition, how=how)
    assert repr(rows_of(table)) == repr(expected(database, where, how, columns))


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("join", TAKERS)
def test_condition_beside_a_key(
    join: str, how: str, master: Path, database: duckdb.DuckDBPyConnection
) -> None:
    condition = ss.compare("weight", "<", "limit") & ss.compare("name", "!=", "label")
    where = "s.id = m.k AND s.weight < m.limit AND s.name <> m.label"
    columns = [name for name in master_table().column_names if name != "k"]
    table = joined(master, join, "400kB", on={"id": "k"}, condition=condition, how=how)
    assert repr(rows_of(table)) == repr(expected(database, where, how, columns))


@pytest.mark.parametrize("how", ["left", "semi"])
def test_condition_beside_a_hashed_key(
    how: str, hashed: Path, database: duckdb.DuckDBPyConnection
) -> None:
    condition = ss.compare("price", ">", "low") & ss.compare("name", "<=", "label")
    where = "s.name = m.label AND s.price > m.low AND s.name <= m.label"
    columns = [name for name in master_table().column_names if name != "label"]
    table = joined(hashed, "meshjoin", "400kB", on={"name": "label"}, condition=condition, how=how)
    assert repr(rows_of(table)) == repr(expected(database, where, how, columns, "h"))


@pytest.mark.parametrize("memory", ["least", 400_000, "1MB"])
@pytest.mark.parametrize("join", TAKERS)
def test_any_memory_and_moves(
    join: str, memory: Any, master: Path, database: duckdb.DuckDBPyConnection
) -> None:
    """With as little memory as it takes, with results over many steps, moved on the way."""
    condition, where = CASES["between"]
    condition &= ss.compare("name", "!=", "label")
    where += " AND s.name <> m.label"
    schema = stream_table().schema
    batches = cut(stream_table(), 90)

    def make(size: int) -> Run:
        arguments: dict[str, Any] = {"condition": condition, "schema": schema, "how": "left"}
        return Run(ss.make_join(join, master, memory=size, **arguments))

    if memory == "least":
        memory = 10_000
        while True:
            try:
                with make(memory).join as least:
                    least.push(batches[0])
                break
            except BudgetError as error:
                memory = int(error.hint.split('"')[1])
        # What is left of a batch may have longer strings on average.
        memory = memory * 11 // 10
    run = make(memory if isinstance(memory, int) else 1_000_000)
    for number, batch in enumerate(batches):
        while batch.num_rows:
            batch = batch.slice(run.push(batch))
            run.step()
        if number % 2:
            taken, data = run.batches, run.join.snapshot().to_bytes()
            run.join.close()
            run = make(run.join.stats.bytes_limit)
            run.batches = taken
            run.join.restore(Snapshot.from_bytes(data))
    run.finish()
    run.join.close()
    columns = master_table().column_names
    assert repr(rows_of(run.table())) == repr(expected(database, where, "left", columns))


def test_auto_and_chosen_columns(master: Path, database: duckdb.DuckDBPyConnection) -> None:
    condition, where = CASES["band"]
    table = joined(master, "auto", "1MB", condition=condition, columns=["row", "k"])
    assert table.column_names[-2:] == ["row", "k"]
    assert repr(rows_of(table)) == repr(expected(database, where, "inner", ["row", "k"]))


def test_errors(master: Path) -> None:
    schema = stream_table().schema

    def make(condition: Any, algorithm: str = "meshjoin", **arguments: Any) -> None:
        ss.make_join(algorithm, master, schema=schema, condition=condition, **arguments).close()

    good = ss.compare("price", "<", "low")
    with pytest.raises(OptionError, match=r"sweepjoin joins equal keys only.*Hint: use one of"):
        make(good, "sweepjoin", on={"id": "k"})
    with pytest.raises(OptionError, match="neither on= nor condition="):
        make(None)
    with pytest.raises(OptionError, match=r"the condition is a str.*ss\.between"):
        make("price < low")
    with pytest.raises(UnknownNameError, match=r"no column in the stream 'prize'.*did you mean"):
        make(ss.compare("prize", "<", "low"))
    with pytest.raises(UnknownNameError, match="no column in the master 'price'"):
        make(ss.compare("price", "<", "price"))
    with pytest.raises(SchemaError, match=r"'name' is string.*'low' is int64: they cannot"):
        make(ss.compare("name", "<", "low"))
    with pytest.raises(UnknownNameError, match="no comparison '=<'"):
        ss.compare("price", "=<", "low")
    with pytest.raises(OptionError, match="closed='up'"):
        ss.between("price", "low", "high", closed="up")
    with pytest.raises(OptionError, match="width= or below="):
        ss.band("price", "low")
    with pytest.raises(OptionError, match="cannot reach -1 far"):
        ss.band("price", "low", width=-1)
    with pytest.raises(OptionError, match=r"offset is .*a datetime\.timedelta"):
        make(ss.band("time", "since", width=5))
    with pytest.raises(OptionError, match=r"1\.5 and both columns are integers"):
        make(ss.band("price", "low", width=1.5))
    with pytest.raises(OptionError, match="not a function"):
        ss.predicate("x", stream=[], master=[])  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="gave list, not an array of booleans"):
        joined(
            master,
            "auto",
            "1MB",
            condition=ss.predicate(lambda s, m: [True], stream=["price"], master=["low"]),
        )
    with pytest.raises(OptionError, match="gave 1 flags for"):
        joined(
            master,
            "auto",
            "1MB",
            condition=ss.predicate(lambda s, m: np.array([True]), stream=["price"], master=["low"]),
        )
