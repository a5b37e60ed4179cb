"""What commands that run a query show and say, without a query."""

from __future__ import annotations

import os
import signal

import pytest

pytest.importorskip("pyspark")

from semistream.cli.streaming import moment, plain_summary, stop_on_interrupt
from semistream.core.stats import JoinStats
from semistream.spark.metrics import BatchStats
from semistream.spark.pipeline import explained
from semistream.spark.recorder import MicroBatch, Recorder


def batch(number: int, ended_s: float, rows: int, *, behind: int | None = None) -> MicroBatch:
    join = JoinStats(rows_in=rows, rows_out=2 * rows, hits=rows, misses=rows, pages_read=rows // 10)
    join.bytes_in_use, join.bytes_limit, join.bytes_peak = 1_000_000, 2_000_000, 1_500_000 + number
    stats = BatchStats(batch=number, tasks=2, version=1, join=join)
    return MicroBatch(
        number, rows, int(ended_s * 1e9), {"triggerExecution": 500}, stats, rows_behind=behind
    )


def test_rates_are_those_of_the_last_seconds() -> None:
    batches = [batch(0, 1.0, 9_000_000), batch(1, 10.0, 1000), batch(2, 12.0, 3000, behind=70)]
    shown = dict(moment(batches, int(12.5e9)))
    assert shown["input"] == "364 rows/s"  # 4000 in the 11 s since batch 0
    assert shown["joined"] == "727 rows/s"
    assert shown["hits"] == "50%"
    assert shown["memory"] == "1.0 MB of 2.0 MB"
    assert shown["waiting"] == "0 rows in the join, 70 at the source"
    assert shown["batch"] == "2, 0.50 s"


def test_the_first_micro_batch_and_a_stream_that_stands_still() -> None:
    first = dict(moment([batch(0, 1.0, 1000)], int(1e9)))
    assert first["input"] == "2.00 k rows/s"  # in its half second
    later = dict(moment([batch(0, 1.0, 1000), batch(1, 2.0, 500)], int(100e9)))
    assert later["input"] == "500 rows/s"
    assert later["waiting"] == "0 rows in the join"


def test_the_summary_adds_up() -> None:
    recorder = Recorder()
    recorder.add(batch(0, 1.0, 1000))
    recorder.add(batch(1, 2.0, 500))
    plain = plain_summary(recorder, 1.5)
    assert plain["rows_in"] == 1500
    assert plain["rows_out"] == 3000
    assert plain["bytes_in_use"] == 1_000_000
    assert plain["bytes_peak"] == 1_500_001
    assert plain["micro_batches"] == 2
    assert plain_summary(Recorder(), 0.0)["rows_in"] == 0


def test_the_first_ctrl_c_asks_and_the_second_kills() -> None:
    before = signal.getsignal(signal.SIGINT)
    with stop_on_interrupt() as stop:
        assert not stop.is_set()
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.wait(5)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGINT) is before


def test_errors_of_tasks_and_of_spark() -> None:
    own = explained(
        Exception(
            "[STREAM_FAILED] Query terminated: Traceback\n  File …\n"
            "semistream.core.errors.StoreError: no master at '/a.b'. Hint: build it.\n\tat java…"
        )
    )
    assert (own.message, own.hint) == ("no master at '/a.b'", "build it")
    plain = explained(Exception("o.a.s.X: oh\n: [DATA_SOURCE_NOT_FOUND] no jsn. SQLSTATE\n at"))
    assert plain.message == "Spark: [DATA_SOURCE_NOT_FOUND] no jsn. SQLSTATE"
