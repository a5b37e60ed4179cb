"""Recordings: written, read, cut at any byte, replayed, made into a report."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from pathlib import Path

import pytest

from semistream.core.clock import SystemClock
from semistream.core.errors import SourceError
from semistream.dashboard import About, History, Moment, RecordedRun, Recording, replay, report_of
from semistream.dashboard.moment import KEEPING_UP, STOPPED
from semistream.dashboard.report import embedded

HOSTILE = "</script><script>alert(1)</script>\u2028<!--"


def recording(path: Path, seconds: int = 20, *, stopped: bool = True, step: float = 1.0) -> Path:
    with Recording(path, About("orders", {"memory": "8MB"})) as file:
        for number in range(seconds):
            file.add(
                Moment(
                    1.7e9 + step * number,
                    KEEPING_UP,
                    "well",
                    input_rows_s=100.0 + number,
                    hot_keys=[(HOSTILE, 0.5)],
                )
            )
        if stopped:
            file.add(Moment(1.7e9 + step * seconds, STOPPED, "ended"))
    return path


def test_what_was_written_is_read(tmp_path: Path) -> None:
    run = RecordedRun(recording(tmp_path / "r.jsonl"))
    moments = list(run.moments())
    assert run.about == About("orders", {"memory": "8MB"})
    assert len(moments) == 21
    assert moments[3].input_rows_s == 103
    assert moments[0].hot_keys == [(HOSTILE, 0.5)]
    assert run.problem == ""


def test_cut_at_every_byte(tmp_path: Path) -> None:
    whole = recording(tmp_path / "whole.jsonl", 3).read_bytes()
    lines = whole.splitlines(keepends=True)
    cut = tmp_path / "cut.jsonl"
    for size in range(len(lines[0]), len(whole)):
        cut.write_bytes(whole[:size])
        run = RecordedRun(cut)
        complete = whole[:size].count(b"\n") - 1
        read = len(list(run.moments()))
        # A line that lacks nothing but its end is a line.
        assert complete <= read <= complete + 1
        assert run.problem or read == 4


def test_a_cut_recording_says_so(tmp_path: Path) -> None:
    path = recording(tmp_path / "r.jsonl", 10)
    text = path.read_text()
    path.write_text(text[: text.index("\n", len(text) // 2) - 20])
    run = RecordedRun(path)
    count = len(list(run.moments()))
    assert 3 < count < 8
    assert run.problem == f"the recording is cut or damaged in line {count + 2}"
    history = History()
    replay(run, history, SystemClock(), threading.Event(), speed=1e6)
    assert history.latest is not None
    assert (history.latest.state, history.latest.reason) == (STOPPED, run.problem)
    assert run.problem in report_of(run)


def test_a_run_that_was_killed(tmp_path: Path) -> None:
    run = RecordedRun(recording(tmp_path / "r.jsonl", stopped=False))
    assert len(list(run.moments())) == 20
    assert run.problem == "the recording ends while the pipeline runs"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not a recorded run"),
        (b"\x00\xff\xfe" * 100, "is not a recorded run"),
        (b"[1]\n", "is not a recorded run"),
        (b'{"kind": "something"}\n', "is not a recorded run"),
        (b'{"kind": "semistream recording", "format": 99, "name": "x"}\n', "has format 99"),
        (b'{"kind": "semistream recording", "format": 1, "facts": 5}\n', "is not a recorded run"),
    ],
)
def test_files_that_are_no_recording(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(content)
    with pytest.raises(SourceError, match=message):
        RecordedRun(path)
    with pytest.raises(SourceError, match="cannot be read"):
        RecordedRun(tmp_path / "nobody.jsonl")


def test_replay_keeps_the_pace_and_stops(tmp_path: Path) -> None:
    run = RecordedRun(recording(tmp_path / "r.jsonl", 10))
    clock, history = SystemClock(), History()
    begun = clock.now_ns()
    assert replay(run, history, clock, threading.Event(), speed=20.0, hide_keys=True) == 11
    assert 0.4 < (clock.now_ns() - begun) / 1e9 < 5
    assert {key for moment in history.whole for key, _ in moment.hot_keys} == {"key 1"}
    stop = threading.Event()
    stop.set()
    assert replay(run, History(), clock, stop) == 1


def test_the_report_holds_everything_and_lets_nothing_in(tmp_path: Path) -> None:
    page = report_of(RecordedRun(recording(tmp_path / "r.jsonl")))
    # The link that saves a report is hidden in one.
    assert re.findall(r'(?:src|href)="([^"]*)"', page) == ["report.html"]
    assert "url(" not in page
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)
    assert policy is not None
    assert "default-src 'none'" in policy[1]
    assert "unsafe" not in policy[1]
    for tag in ("script", "style"):
        for text in re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL):
            digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
            assert f"'sha256-{digest}'" in policy[1]
    data = re.search(r'id="recorded">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    assert "<" not in data[1]
    read = json.loads(data[1])
    assert len(read["moments"]) == 21
    assert read["moments"][0]["hot_keys"][0][0] == HOSTILE
    assert len(page) < 200_000


def test_json_that_cannot_end_its_element() -> None:
    assert json.loads(embedded({"a": HOSTILE})) == {"a": HOSTILE}
    assert not set("<>&\u2028\u2029") & set(embedded(HOSTILE))
