"""`semistream demo`: runs to its end, verified, and ends early when asked."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from semistream.bench.checksum import Checksum
from semistream.cli.demo import Run as DemoRun
from semistream.cli.demo import stop_on_interrupt
from semistream.testing import ManualClock

if TYPE_CHECKING:
    from tests.cli.conftest import Run

SMALL = ("demo", "--rows", 20_000, "--memory", "1MB", "--rate", 40_000)


def test_it_runs_to_the_end_and_is_verified(run: Run) -> None:
    ended = run(*SMALL, "--seconds", 1.5, "--json")
    assert ended.code == 0
    summary = ended.json
    assert summary["verified"] is True
    assert summary["rows_in"] == summary["rows_out"] > 0
    assert summary["rows_waiting"] == 0
    assert summary["bytes_peak"] <= summary["bytes_limit"] == 1_000_000
    assert "input " in ended.err
    assert "memory " in ended.err


def test_the_summary_for_people(run: Run) -> None:
    ended = run(*SMALL, "--seconds", 0.3)
    assert ended.code == 0
    assert "same as DuckDB" in ended.out
    assert "pages read" in ended.out


def test_a_wrong_result_is_a_failed_check(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    right = Checksum.add

    def without_a_row(self: Checksum, batch: pa.RecordBatch) -> None:
        right(self, batch.slice(1) if self.rows == 0 else batch)

    monkeypatch.setattr(Checksum, "add", without_a_row)
    ended = run(*SMALL, "--seconds", 0.3, "--json")
    assert ended.code == 1
    assert ended.json["verified"] is False


def test_too_little_memory_is_an_error_with_a_hint(run: Run) -> None:
    failed = run("demo", "--rows", 20_000, "--memory", "1kB")
    assert failed.code == 2
    assert failed.out == ""
    assert "needs at least" in failed.err
    assert "hint: " in failed.err


def test_arrivals_wait_for_their_time() -> None:
    clock = ManualClock()
    demo = DemoRun(1000, 1.0, 1.0, 10_000, clock, threading.Event())
    waits: list[float | None] = []

    class Hand(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout)
            clock.advance((timeout or 0) + 1e-6)
            return False

    demo.stop = Hand()
    rows = sum(batch.num_rows for batch in demo.arrivals())
    assert rows == demo.arrived > 0
    assert sum(wait or 0 for wait in waits) == pytest.approx(0.95, abs=1e-3)


def test_the_first_ctrl_c_asks_the_stream_to_end() -> None:
    with stop_on_interrupt() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)
        assert stop.is_set()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    demo = DemoRun(1000, 100.0, 1.0, 10_000, ManualClock(), stop)
    assert list(demo.arrivals()) == []
