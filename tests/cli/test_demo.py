"""`semistream demo`: the whole pipeline, verified, ended in order, and what it shows."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from semistream.bench.checksum import Checksum

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.cli.conftest import Run

SMALL = ("demo", "--rows", 20_000, "--memory", "4MB", "--rate", 20_000)


def test_it_runs_to_the_end_and_is_verified(run: Run, spark: SparkSession) -> None:
    ended = run(*SMALL, "--seconds", 2.5, "--json")
    assert ended.code == 0, ended.err
    summary = ended.json
    assert summary["verified"] is True
    assert summary["rows_sent"] == summary["rows_written"] > 0
    assert summary["rows_out"] >= summary["rows_written"] - 200_000
    assert summary["micro_batches"] >= 1
    assert summary["bytes_peak"] <= summary["bytes_limit"] == 4_000_000
    assert "at the source" in ended.err
    for name in ("input", "joined", "hits", "read", "memory", "waiting", "batch"):
        assert f"{name} " in ended.err
    assert not spark.streams.active


def test_a_wrong_result_is_a_failed_check(
    run: Run, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = Checksum.add

    def without_a_row(self: Checksum, batch: pa.RecordBatch) -> None:
        right(self, batch.slice(1) if self.rows == 0 else batch)

    monkeypatch.setattr(Checksum, "add", without_a_row)
    ended = run(*SMALL, "--seconds", 0.3)
    assert ended.code == 1
    assert "same as DuckDB" in ended.out
    assert "NO" in ended.out


def test_ctrl_c_ends_it_with_the_summary(run: Run, spark: SparkSession) -> None:
    """Sent again and again: the first one that the query sees ends it, before it there is none."""
    over = threading.Event()

    def press() -> None:
        while not over.wait(0.2):
            if spark.streams.active and spark.streams.active[0].lastProgress is not None:
                os.kill(os.getpid(), signal.SIGINT)
                return

    finger = threading.Thread(target=press)
    finger.start()
    try:
        ended = run(*SMALL, "--seconds", 120)
    finally:
        over.set()
        finger.join()
    assert "What happened" in ended.out
    assert not spark.streams.active


def test_too_little_memory_is_an_error_with_a_hint(run: Run, spark: SparkSession) -> None:
    failed = run("demo", "--rows", 20_000, "--memory", "1kB")
    assert failed.code == 2
    assert failed.out == ""
    assert "needs at least" in failed.err
    assert "hint: " in failed.err
