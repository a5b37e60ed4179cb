"""On a standalone cluster: the package shipped, shards read by executors, a worker that dies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from semistream.bench.checksum import Checksum
from semistream.bench.oracle import JOINED, ProductOracle
from semistream.spark import package, read_sink, shipped
from semistream.testing.cluster import SparkCluster
from semistream.workloads import sales
from tests.spark import cluster_driver

DRIVER = Path(cluster_driver.__file__)
SOURCE = Path(__file__).parents[2] / "src"


def test_the_archive_has_the_package_and_its_kernels(tmp_path: Path) -> None:
    archive = package(tmp_path / "package.tar.gz")
    with tarfile.open(archive) as opened:
        members = {member.name: member for member in opened}
    assert "semistream/__init__.py" in members
    assert "semistream/kernels/matching.py" in members
    assert not any(name.endswith(".pyc") for name in members)
    source = SOURCE / "semistream" / "kernels" / "matching.py"
    assert members["semistream/kernels/matching.py"].mtime == source.stat().st_mtime
    assert shipped(archive)["spark.archives"].startswith(f"{archive}#")


@pytest.mark.slow
@pytest.mark.spark
def test_a_worker_dies_in_the_middle_of_a_stream(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "PYSPARK_PYTHON": sys.executable}
    with SparkCluster(workers=2) as cluster, (tmp_path / "driver.log").open("wb") as log:
        command = [sys.executable, str(DRIVER), cluster.url, str(tmp_path)]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, env=environment
        ) as driver:
            try:
                lines = told(driver)
                imported = next(lines)["imported"]
                assert len(imported) == 2, imported
                for one in imported:
                    directory, file = one.split(" ")
                    assert file.startswith(f"{directory}/semistream-package/"), one
                    assert directory.startswith(str(cluster.folder)), one
                before = [next(lines) for _ in range(4)]
                assert before[-1]["executors"] == 2
                cluster.kill_worker(0)
                after = list(lines)
                assert driver.wait(60) == 0, (tmp_path / "driver.log").read_text()[-4000:]
            finally:
                driver.kill()
    assert after[-1] == {"done": cluster_driver.ROWS}
    assert after[-2]["executors"] == 1
    assert len(after) > 3, "the stream was over before the worker died"
    assert {line["tasks"] for line in before} == {2}, "both shards are joined"
    assert verified(tmp_path)


def told(driver: subprocess.Popen[bytes]) -> Iterator[dict[str, Any]]:
    assert driver.stdout is not None
    for line in driver.stdout:
        if line.startswith(b"{"):
            yield json.loads(line)


def verified(folder: Path) -> bool:
    """Whether the sink holds exactly DuckDB's join of everything that was sent."""
    written = Checksum()
    for batch in read_sink(folder / "enriched").to_batches(columns=JOINED.names):
        written.add(batch.cast(JOINED))
    rows, count = cluster_driver.ROWS, cluster_driver.PRODUCTS
    with ProductOracle(count) as oracle:
        expected = oracle.expected(list(sales(rows, products=count, seed=3)))
    return expected.agrees(written, rows)
