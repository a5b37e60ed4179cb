"""A pipeline that is watched: what is written, and what goes wrong with the writing."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path
from urllib.request import urlopen

import pytest

pytest.importorskip("pyspark")

from semistream.core.errors import OptionError, QueryError
from semistream.dashboard import About, Access, Watch
from semistream.dashboard.live import Lines
from semistream.dashboard.moment import FALLING_BEHIND, KEEPING_UP, Moment
from tests.dashboard.feed import Feed, HandClock

ABOUT = About("orders")


def last(path: Path) -> dict[str, object]:
    record: dict[str, object] = json.loads(path.read_text().splitlines()[-1])
    return record


def test_all_that_a_run_leaves(tmp_path: Path) -> None:
    clock = HandClock()
    watch = Watch(
        ABOUT,
        clock,
        access=Access(port=0),
        record=tmp_path / "r.jsonl",
        report=tmp_path / "r.html",
        lines=tmp_path / "r.log",
        every_s=0.01,
    )
    with watch:
        assert watch.server is not None
        feed = Feed(watch.tracker, clock)
        watch.add(feed.second())
        threading.Event().wait(0.1)
        with urlopen(watch.server.address + "health") as answer:
            assert json.load(answer)["state"] == KEEPING_UP
        watch.stop("enough")
    assert (last(tmp_path / "r.jsonl")["state"], last(tmp_path / "r.jsonl")["reason"]) == (
        "stopped",
        "enough",
    )
    states = [json.loads(line)["state"] for line in (tmp_path / "r.log").read_text().splitlines()]
    assert states == ["starting", "keeping up", "stopped"]
    assert '"reason":"enough"' in (tmp_path / "r.html").read_text()
    with pytest.raises(OSError, match="refused"):
        urlopen(watch.server.address)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (QueryError("no master at 'x'"), "failed: no master at 'x'"),
        (ValueError("a secret"), "failed: ValueError"),
        (KeyboardInterrupt(), "ended by Ctrl-C"),
    ],
)
def test_a_pipeline_that_fails(tmp_path: Path, error: BaseException, reason: str) -> None:
    with (
        pytest.raises(type(error)),
        Watch(ABOUT, HandClock(), record=tmp_path / "r.jsonl", every_s=0.01),
    ):
        raise error
    assert last(tmp_path / "r.jsonl")["reason"] == reason


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    with (
        pytest.raises(FileNotFoundError),
        Watch(ABOUT, HandClock(), record=tmp_path / "r", report=tmp_path / "none" / "r.html"),
    ):
        pass
    with (
        pytest.raises(OptionError, match="cannot listen"),
        Watch(
            ABOUT,
            HandClock(),
            record=tmp_path / "r",
            access=Access("192.0.2.1", 0, "a token of 16 or more"),
        ),
    ):
        pass


def test_a_full_disk_ends_the_recording_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = HandClock()
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("needs /dev/full")
    lines = tmp_path / "r.log"
    caplog.set_level(logging.WARNING, logger="semistream.dashboard")
    with Watch(ABOUT, clock, lines=lines, every_s=0.01) as watch:

        def fail(moment: Moment) -> None:
            with full.open("w") as file:
                file.write("x")

        watch._takers.insert(0, fail)
        threading.Event().wait(0.1)
        Feed(watch.tracker, clock).second()
        threading.Event().wait(0.1)
    assert [json.loads(line)["state"] for line in lines.read_text().splitlines()] == [
        "starting",
        "keeping up",
        "stopped",
    ]
    assert sum("no longer written" in message for message in caplog.messages) == 1


def test_lines_come_seldom_and_with_every_change(tmp_path: Path) -> None:
    with Lines(tmp_path / "r.log", ABOUT) as lines:
        for second in range(25):
            lines.add(Moment(float(second), FALLING_BEHIND if second == 12 else KEEPING_UP))
    events = [json.loads(line) for line in (tmp_path / "r.log").read_text().splitlines()]
    assert [(line["event"], line["time"][17:19]) for line in events] == [
        ("state", "00"),
        ("progress", "10"),
        ("state", "12"),
        ("state", "13"),
        ("progress", "23"),
    ]
