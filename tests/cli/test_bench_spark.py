"""`semistream bench run spark`: every system verified, and a wrong result found out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.cli.conftest import Run

SMALL = ("bench", "run", "spark", "--rows", 20_000, "--batch-rows", 2000, "--memory", "4MB")
SYSTEMS = [
    "semistream-drained",
    "semistream-waiting",
    "spark-sort-merge",
    "spark-shuffled-hash",
    "spark-broadcast-stream",
    "spark-bucketed",
    "spark-identity",
]


def test_every_system_is_verified(run: Run, spark: SparkSession, tmp_path: Path) -> None:
    from semistream.bench.spark import USUAL

    assert list(USUAL) == SYSTEMS
    systems = [*SYSTEMS, "spark-identity-by-key", "semistream-by-shard"]
    options = ["--seconds", 0.2, "--max-wait", "1500 ms", "--workdir", tmp_path / "work"]
    options += ["--systems", ",".join(systems), "--rounds", 1]
    ended = run(*SMALL, *options, "--out", tmp_path / "out", "--json")
    assert ended.code == 0, ended.err
    cells = ended.json
    assert [cell["system"] for cell in cells] == systems
    for cell in cells:
        assert cell["verified"] is True
        assert cell["batch_rows"] == 2000
        assert cell["rounds"] == [cell["rows_per_s"]]
        assert cell["rows_per_s"] > 0
        assert cell["batch_ms"]["triggerExecution"] >= cell["batch_ms"]["addBatch"] > 0
        assert (cell["join_busy_ms"] > 0) == cell["system"].startswith("semistream")
    stored = json.loads(next((tmp_path / "out").glob("spark/**/result.json")).read_text())
    assert stored["results"] == cells
    assert len(list((tmp_path / "work").glob("spark-*/"))) == 0, "what a run needs is removed"


def test_lookups_by_hand_are_verified(run: Run, spark: SparkSession, open_folder: Path) -> None:
    from semistream.bench.peers.postgres import Postgres
    from semistream.bench.peers.rocksdb import RocksDb
    from semistream.bench.spark import BY_HAND

    for kind in (RocksDb, Postgres):
        lack = kind.missing()
        if lack is not None:
            pytest.skip(lack)
    options = ["--seconds", 0.2, "--workdir", open_folder, "--systems", ",".join(BY_HAND)]
    ended = run(*SMALL, *options, "--rounds", 1, "--json")
    assert ended.code == 0, ended.err
    assert [(cell["system"], cell["verified"]) for cell in ended.json] == [
        (name, True) for name in BY_HAND
    ]


def test_systems_take_turns(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from semistream.bench import spark as bench

    rates = iter([9.0, 9.0, 1.0, 40.0, 5.0, 20.0, 3.0, 10.0])  # the first two are not measured
    turns: list[str] = []

    def measure(system: str, *others: object) -> bench.SparkResult:
        turns.append(system)
        (folder,) = (one for one in others if isinstance(one, Path))
        folder.mkdir()
        rate = next(rates)
        return bench.SparkResult(
            system=system,
            batch_rows=100,
            rows_per_s=rate,
            verified=rate != 40,
            rows=100,
            batches=int(rate),
            seconds=1,
            batch_ms={},
            join_tasks=0,
            join_busy_ms=0,
            join_io_ms=0,
            hit_share=0,
            pages_per_row=0,
            product_rows=1000,
            memory="1MB",
            skew=1,
            rounds=(rate,),
        )

    monkeypatch.setattr(bench, "measure", measure)
    systems = ("semistream-drained", "spark-identity")
    options = bench.SparkOptions(rows=1000, batch_rows=(100,), systems=systems, seconds=0.1)
    ours, identity = bench.run_spark(options, tmp_path, spark)
    assert turns == [*systems] * 4
    assert (ours.rows_per_s, ours.rounds, ours.batches) == (3, (1, 5, 3), 3)
    assert (identity.rows_per_s, identity.rounds, identity.batches) == (20, (40, 20, 10), 20)
    assert ours.verified
    assert not identity.verified, "one round was wrong"


def test_a_wrong_result_ends_with_code_1(
    run: Run, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from semistream.bench import spark as bench

    monkeypatch.setitem(
        bench.SYSTEMS,
        "spark-identity",
        lambda stream, tables: stream.withColumn("quantity", stream.quantity + 1),
    )
    options = [
        "--seconds",
        0.2,
        "--systems",
        "spark-identity",
        "--rounds",
        1,
        "--workdir",
        tmp_path,
    ]
    ended = run(*SMALL, *options)
    assert ended.code == 1
    assert "NO" in ended.out
    assert "NOT what DuckDB's join gives" in ended.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--systems", "spark-sortmerge"], "did you mean 'spark-sort-merge'?"),
        (["--batch-rows", "many"], "'many' is not a whole number"),
        (["--batch-rows", "0"], "a micro-batch of 0 rows"),
        (["--memory", "much"], "not a size"),
        (["--max-wait", "long"], "not a duration"),
        (["--rows", "0"], "0 rows"),
        (["--seconds", "0"], "3 rounds of 0.0 s"),
        (["--rounds", "0"], "0 rounds"),
    ],
)
def test_wrong_options(run: Run, tmp_path: Path, arguments: list[str], message: str) -> None:
    pytest.importorskip("pyspark")
    failed = run(*SMALL, "--workdir", tmp_path, *arguments)
    assert failed.code == 2
    assert message in failed.err
    assert failed.out == ""
