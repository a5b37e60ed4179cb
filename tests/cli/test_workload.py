"""`semistream workload`: files that are what the generators make."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from semistream.workloads import WORKLOADS, make_workload

if TYPE_CHECKING:
    from tests.cli.conftest import Run


def test_both_sides_are_written(run: Run, tmp_path: Path) -> None:
    workload = make_workload("one-to-k", master_rows=3000, k=3, skew=0.5, seed=9)
    common = ["--master-rows", 3000, "--k", 3, "--skew", 0.5, "--seed", 9, "--json"]
    stream, master = tmp_path / "stream.parquet", tmp_path / "master.parquet"
    told = run("workload", "one-to-k", "--rows", 70_000, "--out", stream, *common).json
    assert (told["rows"], told["side"], told["key"]) == (70_000, "stream", "product_id")
    assert told["options"] == {"master_rows": 3000, "k": 3, "skew": 0.5, "seed": 9}
    assert told["bytes"] == stream.stat().st_size
    assert pq.read_table(stream).equals(workload.stream(70_000).read_all())
    told = run("workload", "one-to-k", "--side", "master", "--out", master, *common).json
    assert told["rows"] == 3000
    assert pq.read_table(master).equals(workload.master().read_all())
    assert sorted(path.name for path in tmp_path.iterdir()) == [master.name, stream.name]


def test_rows_are_those_of_the_side(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "m.parquet"
    shown = run("workload", "unsorted", "--side", "master", "--rows", 123, "--out", file)
    assert shown.code == 0
    assert "master, 123 rows" in shown.out
    assert pq.read_metadata(file).num_rows == 123


def test_the_list_names_all_with_their_options(run: Run) -> None:
    listed = run("workload", "--list", "--json").json
    assert [one["name"] for one in listed] == list(WORKLOADS)
    assert all(one["idea"] for one in listed)
    shown = run("workload", "--list").out
    assert all(name in shown for name in WORKLOADS)
    assert "--row-bytes" in shown


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["zip", "--out", "x.parquet"], "there is no workload 'zip'"),
        (["uniform", "--skew", "1", "--out", "x.parquet"], "option of workload uniform"),
        (["unsorted"], "--out"),
        ([], "--list"),
    ],
)
def test_wrong_calls_are_usage_errors(run: Run, arguments: list[str], said: str) -> None:
    failed = run("workload", *arguments)
    assert failed.code == 2
    assert failed.out == ""
    assert said in failed.err
