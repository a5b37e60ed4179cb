"""Every example of docs/sources-and-sinks.md runs and prints what the page says."""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from semistream.spark.sinks import connect
from semistream.testing.postgres import PostgresServer

PAGE = Path(__file__).parents[2] / "docs" / "sources-and-sinks.md"
EXAMPLE = re.compile(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", re.DOTALL)


def examples() -> list[tuple[str, str]]:
    return EXAMPLE.findall(PAGE.read_text())


def needs_postgres(code: str) -> bool:
    return "postgres_sink" in code


def run(code: str, names: dict[str, Any]) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, str(PAGE), "exec"), names)
    return printed.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    before, made = Path.cwd(), tmp_path_factory.mktemp("examples")
    os.chdir(made)
    yield made
    os.chdir(before)


@pytest.fixture(scope="module")
def names(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """The page's names after all examples that need no server."""
    found: dict[str, Any] = {}
    for code, expected in examples():
        if not needs_postgres(code):
            assert run(code, found) == expected, code
    return found


def test_examples(names: dict[str, Any]) -> None:
    assert sum(needs_postgres(code) for code, _ in examples()) == 1
    assert names["clicks"].isStreaming


def test_the_rate_source(names: dict[str, Any], folder: Path) -> None:
    enriched = names["enrich"](names["clicks"], "products.master", on="product_id", memory="16MB")
    query = (
        enriched.writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoints" / "rate"))
        .start(str(folder / "clicked"))
    )
    try:
        query.processAllAvailable()
    except Exception as error:
        pytest.fail(str(error))
    finally:
        query.stop()
    assert names["read_sink"](folder / "clicked").count_rows() % 50 == 0


def test_postgres(names: dict[str, Any], postgres: PostgresServer) -> None:
    (code,) = [code for code, _ in examples() if needs_postgres(code)]
    run(code, {**names, "uri": postgres.uri})
    with contextlib.closing(connect(postgres.uri)) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT count(*), count(name) FROM enriched_sales")
        assert cursor.fetchone() == (5000, 5000)
