"""`semistream run`: the example, a restart, and what goes wrong."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from semistream.testing.postgres import PostgresServer
    from tests.cli.conftest import Run

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def example(tmp_path: Path) -> Path:
    shutil.copytree(EXAMPLES / "orders", tmp_path / "orders")
    return tmp_path / "orders"


def expected(folder: Path) -> list[tuple[object, ...]]:
    query = f"""
        SELECT order_id, o.customer_id, amount, name, city, discount,
               CASE WHEN o.customer_id IS NULL THEN 'the key is null' END
        FROM read_json('{folder}/orders/*.json') o
        LEFT JOIN '{folder}/customers.csv' c ON o.customer_id = c.customer_id ORDER BY order_id
    """
    return duckdb.connect().execute(query).fetchall()


def written(folder: Path) -> list[tuple[object, ...]]:
    from semistream.spark import read_sink

    rows = read_sink(folder / "enriched").to_table().sort_by("order_id")
    return [tuple(row.values()) for row in rows.to_pylist()]


def test_the_example_and_its_restart(run: Run, spark: SparkSession, example: Path) -> None:
    ended = run("run", example / "pipeline.toml", "--json")
    assert ended.code == 0, ended.err
    assert written(example) == expected(example)
    assert ended.json["rows_in"] == 60
    assert ended.json["micro_batches"] == 3
    assert "Built the master" in ended.err
    assert "join     left by auto with customers.master" in ended.err
    shutil.copy(example / "orders" / "0.json", example / "orders" / "3.json")
    again = run("run", example / "pipeline.toml")
    assert again.code == 0
    assert "Built the master" not in again.err
    assert "What happened" in again.out
    assert written(example) == expected(example)


def test_into_postgres_with_rows_that_wait(
    run: Run, spark: SparkSession, example: Path, postgres: PostgresServer
) -> None:
    file = example / "pipeline.toml"
    text = file.read_text()
    sink = f'format = "postgres"\nuri = "{postgres.uri}"\ntable = "ran"\ncheckpoint = "kept"'
    text = text.replace('format = "parquet"\npath = "enriched"', sink)
    text = text.replace('memory = "4MB"', 'memory = "4MB"\nmax_wait = "100 ms"')
    text = text.replace("available_now = true", 'every = "200 ms"')
    file.write_text(text)

    from semistream.spark.sinks import connect

    def rows() -> list[tuple[object, ...]]:
        with connect(postgres.uri) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT * FROM ran ORDER BY order_id")
            return list(cursor.fetchall())

    for _ in range(10):  # ended and started again until all rows are through
        ended = run("run", file, "--seconds", 2)
        assert ended.code == 0, ended.err
        if len(rows()) == 60:
            break
    assert rows() == expected(example)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("memory", "memroy", "did you mean 'memory'?"),
        ('on = "customer_id"', 'on = "customer"', "customer"),
        ('"4MB"', '"1kB"', "needs at least"),
        ('format = "json"', 'format = "jsn"', "jsn"),
        ('"left"', '"outer"', "outer"),
        ("order_id long", "order_id lnog", "LNOG"),
        ('source = "customers.csv"', 'source = "nobody.csv"', "nobody.csv"),
    ],
)
def test_errors_before_any_row(
    run: Run, spark: SparkSession, example: Path, old: str, new: str, message: str
) -> None:
    file = example / "pipeline.toml"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    failed = run("run", file)
    assert failed.code == 2
    assert failed.out == ""
    assert message in failed.err
    assert not (example / "enriched").exists()


def test_an_error_in_a_task_is_told_as_it_is(run: Run, spark: SparkSession, example: Path) -> None:
    run("run", example / "pipeline.toml")
    for file in (example / "customers.master").rglob("*.pages"):
        file.write_bytes(b"\0" * file.stat().st_size)
    shutil.copy(example / "orders" / "0.json", example / "orders" / "3.json")
    failed = run("run", example / "pipeline.toml")
    assert failed.code == 2
    assert "checksum" in failed.err
    assert "hint: " in failed.err
