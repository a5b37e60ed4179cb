"""`semistream tune`: plans for a memory and for a rate, and how it says no."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from semistream import build_master, make_join
from semistream.cost import MODELS
from semistream.cost.calibrate import Calibration, host
from tests.cost.typical import TYPICAL


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tune")
    keys = np.arange(50_000)
    build_master(folder / "m", pa.table({"id": keys, "a": keys, "b": keys, "c": keys}), "id")
    costs = replace(TYPICAL, joins=dict.fromkeys(MODELS, TYPICAL.sizes))
    Calibration(costs, host(), "2026-01-01").save(folder / "c.json")
    hot = np.random.default_rng(1).integers(0, 50, 20_000)
    pq.write_table(pa.table({"id": hot, "x": hot}), folder / "stream.parquet")
    return folder


def tune(run: Any, files: Path, *arguments: str) -> Any:
    return run("tune", str(files / "m"), "--calibration", str(files / "c.json"), *arguments)


def test_a_plan_for_a_memory(run: Any, files: Path, tmp_path: Path) -> None:
    found = tune(run, files, "--memory", "900kB", "--json").json
    assert found["predicted_rows_per_s"] > 0
    assert found["memory_bytes"] == 900_000
    assert sum(found["shares"].values()) == pytest.approx(900_000)
    assert found["predicted_rows_per_s"] >= found["others"][0]["predicted_rows_per_s"]
    every = tune(run, files, "--memory", "900kB", "--joins", "all", "--json").json
    assert len(every["others"]) > len(found["others"])
    schema = pa.schema([("id", pa.int64()), ("x", pa.int32())])
    with make_join(
        found["join"], files / "m", on="id", schema=schema, memory=900_000, **found["options"]
    ) as join:
        assert join.stats.bytes_limit == 900_000
    shown = tune(run, files, "--memory", "900kB", "--joins", "hybridjoin", "--explain")
    assert "partition_pages" in shown.out
    assert "###" in shown.out
    assert "c_O" in shown.out
    drawn = tmp_path / "curve.svg"
    assert tune(run, files, "--memory", "900kB", "--plot", str(drawn)).code == 0
    assert "<svg" in drawn.read_text()


def test_a_plan_for_a_rate(run: Any, files: Path) -> None:
    found = tune(run, files, "--rate", "50000", "--joins", "meshjoin", "--json").json
    assert found["join"] == "meshjoin"
    assert found["reaches_rate"]
    assert found["predicted_rows_per_s"] >= 50_000
    less = tune(
        run, files, "--memory", str(int(0.7 * found["memory_bytes"])), "--rate", "50000",
        "--joins", "meshjoin", "--json",
    ).json  # fmt: skip
    assert not less["reaches_rate"]


def test_the_stream_decides_the_skew(run: Any, files: Path) -> None:
    sample = str(files / "stream.parquet")
    skewed = tune(run, files, "--memory", "900kB", "--joins", "sweepjoin", "--stream", sample,
                  "--json").json  # fmt: skip
    even = tune(run, files, "--memory", "900kB", "--joins", "sweepjoin", "--skew", "0",
                "--json").json  # fmt: skip
    assert skewed["loop"]["hits"] / skewed["loop"]["rows"] > 0.5
    assert even["loop"]["hits"] / even["loop"]["rows"] < 0.2


def test_a_modelled_disk(run: Any, files: Path) -> None:
    arguments = ("--memory", "900kB", "--joins", "hybridjoin", "--json")
    slow = tune(run, files, *arguments, "--disk", "8,0.1").json
    fast = tune(run, files, *arguments).json
    assert slow["predicted_rows_per_s"] < fast["predicted_rows_per_s"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "neither --memory nor --rate"),
        (["--memory", "10kB"], "needs at least"),
        (["--rate", "1e12"], "cannot reach"),
        (["--memory", "1MB", "--disk", "fast"], "--disk fast"),
        (["--memory", "1MB", "--plot", "curve.txt"], "is no picture"),
        (["--memory", "1MB", "--joins", "quickjoin"], "quickjoin"),
    ],
)
def test_what_cannot_be(run: Any, files: Path, arguments: list[str], message: str) -> None:
    failed = tune(run, files, *arguments)
    assert failed.code == 2
    assert message in failed.err
    assert failed.out == ""


def test_a_calibration_of_another_host_is_used_with_a_warning(
    run: Any, files: Path, tmp_path: Path
) -> None:
    plain = json.loads((files / "c.json").read_text())
    plain["host"]["cores"] = 1000
    other = tmp_path / "other.json"
    other.write_text(json.dumps(plain))
    shown = run("tune", str(files / "m"), "--calibration", str(other), "--memory", "900kB")
    assert shown.code == 0
    assert "warning" in shown.err
    assert "another host" in shown.err
