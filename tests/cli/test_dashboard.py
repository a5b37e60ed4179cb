"""`semistream dashboard`, without a browser; and what the other commands say about theirs."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from tests.dashboard.test_recording import recording

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.cli.conftest import Run

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_command_writes_a_report(run: Run, tmp_path: Path) -> None:
    path = recording(tmp_path / "r.jsonl", stopped=False)
    ended = run("dashboard", path, "--report", tmp_path / "r.html", "--hide-keys")
    assert ended.code == 0, ended.err
    assert "warning: the recording ends while the pipeline runs" in ended.err
    page = (tmp_path / "r.html").read_text()
    assert "alert(1)" not in page
    failed = run("dashboard", tmp_path / "none.jsonl")
    assert failed.code == 2
    assert "cannot be read" in failed.err


def test_the_command_wants_a_token_elsewhere(run: Run, tmp_path: Path) -> None:
    path = recording(tmp_path / "r.jsonl")
    for arguments, message in (
        (("--host", "0.0.0.0"), "there is no token"),
        (("--token", "short"), "16 are wanted"),
    ):
        failed = run("dashboard", path, *arguments)
        assert failed.code == 2
        assert message in failed.err
        assert "hint: " in failed.err


def test_a_replay_says_where_and_what_is_wrong(run: Run, tmp_path: Path) -> None:
    path = recording(tmp_path / "r.jsonl", 5, stopped=False)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ended = run("dashboard", path, "--port", port, "--speed", 1000, "--seconds", 0.5)
    assert ended.code == 0, ended.err
    lines = ended.err.splitlines()
    assert lines[0].startswith(f"Port {port} is in use; the dashboard takes ")
    assert lines[1].startswith("Dashboard: http://127.0.0.1:")
    assert any(line.startswith("warning: the recording ends while") for line in lines)


def test_a_run_leaves_a_recording_a_report_and_lines(
    run: Run, spark: SparkSession, tmp_path: Path
) -> None:
    shutil.copytree(EXAMPLES / "orders", tmp_path / "orders")
    files = {name: tmp_path / name for name in ("run.jsonl", "run.html", "run.log")}
    ended = run(
        "run", tmp_path / "orders" / "pipeline.toml", "--dashboard", "--port", 0,
        "--record", files["run.jsonl"], "--report", files["run.html"],
        "--log-lines", files["run.log"], "--json",
    )  # fmt: skip
    assert ended.code == 0, ended.err
    assert ended.err.splitlines()[0].startswith("Dashboard: http://127.0.0.1:")
    last = json.loads(files["run.jsonl"].read_text().splitlines()[-1])
    assert (last["state"], last["reason"]) == ("stopped", "the source has ended")
    assert last["totals"]["numRecordsIn"] == ended.json["rows_in"]
    assert last["totals"]["numDeadLetters"] == 3
    assert sum(share for _, share in last["hot_keys"]) > 0
    assert "the source has ended" in files["run.html"].read_text()
    lines = [json.loads(line) for line in files["run.log"].read_text().splitlines()]
    assert lines[0]["state"] == "starting"
    assert lines[-1]["state"] == "stopped"
    assert lines[-1]["numRecordsIn"] == ended.json["rows_in"]


def test_a_failed_run_is_stopped_with_its_reason(
    run: Run, spark: SparkSession, tmp_path: Path
) -> None:
    shutil.copytree(EXAMPLES / "orders", tmp_path / "orders")
    file = tmp_path / "orders" / "pipeline.toml"
    file.write_text(file.read_text().replace('"4MB"', '"1kB"'))
    failed = run("run", file, "--record", tmp_path / "r.jsonl")
    assert failed.code == 2
    last = json.loads((tmp_path / "r.jsonl").read_text().splitlines()[-1])
    assert last["state"] == "stopped"
    assert last["reason"].startswith("failed: ")
    assert "needs at least" in last["reason"]
