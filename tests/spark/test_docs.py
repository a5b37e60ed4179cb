"""Every example of docs/sources-and-sinks.md runs and prints what the page says."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from semistream.spark.sinks import connect
from semistream.testing.postgres import PostgresServer

PAGE = Path(__file__).parents[2] / "docs" / "sources-and-sinks.md"
EXAMPLE = re.compile(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", re.DOTALL)


def examples(folder: Path) -> list[tuple[str, str]]:
    """Code and what it prints, with files in a folder of their own."""
    found = EXAMPLE.findall(PAGE.read_text())
    return [(code.replace('"/data/', f'"{folder}/'), printed) for code, printed in found]


def needs_postgres(code: str) -> bool:
    return "postgres_sink" in code


def run(code: str, names: dict[str, Any]) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, str(PAGE), "exec"), names)
    return printed.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("examples")


@pytest.fixture(scope="module")
def names(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """The page's names after all examples that need no server."""
    found: dict[str, Any] = {}
    for code, expected in examples(folder):
        if not needs_postgres(code):
            assert run(code, found) == expected, code
    return found


def test_examples(names: dict[str, Any], folder: Path) -> None:
    assert sum(needs_postgres(code) for code, _ in examples(folder)) == 1
    assert names["clicks"].isStreaming


def test_the_rate_source(names: dict[str, Any], folder: Path) -> None:
    master = folder / "products.master"
    enriched = names["enrich"](names["clicks"], master, on="product_id", memory="16MB")
    query = (
        enriched.writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoints" / "rate"))
        .start(str(folder / "clicked"))
    )
    try:
        while query.lastProgress is None or query.lastProgress.batchId < 1:
            assert not query.awaitTermination(0.2)
    finally:
        query.stop()
    written = names["read_sink"](folder / "clicked").to_table()
    assert written.num_rows >= 50
    assert written["name"].null_count == 0


def test_postgres(names: dict[str, Any], folder: Path, postgres: PostgresServer) -> None:
    (code,) = [code for code, _ in examples(folder) if needs_postgres(code)]
    run(code, {**names, "uri": postgres.uri})
    with contextlib.closing(connect(postgres.uri)) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT count(*), count(name) FROM enriched_sales")
        assert cursor.fetchone() == (5000, 5000)
