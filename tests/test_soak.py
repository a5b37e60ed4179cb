"""Slow proofs, run by `make soak`: the budget against the process's memory, and a large build.

Each runs in a process of its own, so that what others allocated does not count.
"""

import json
import subprocess
import sys
from typing import Any

import pytest

from semistream.joins.registry import DISK_JOINS

pytestmark = pytest.mark.slow

MASTER_ROWS = 8_400_000
"""About 1 GB of pages."""

BUDGET = 64_000_000
SLACK = 48_000_000
BUILD_LIMIT = 1_000_000_000
BUILD_SLACK = 300_000_000

BUILD = """
import json, sys, threading, time
import psutil
import semistream as ss
from semistream.workloads import products

process, peak, done = psutil.Process(), [0], threading.Event()
def watch():
    while not done.wait(0.005):
        peak[0] = max(peak[0], process.memory_info().rss)
thread = threading.Thread(target=watch); thread.start()
reports = []
ss.build_master(sys.argv[1], products(int(sys.argv[2])), "product_id", memory=int(sys.argv[3]),
                report=lambda phase, count, total: reports.append((phase, count)))
done.set(); thread.join()
print(json.dumps({"peak": peak[0], "reports": len(reports)}))
"""

JOIN = """
import gc, json, sys, threading
import psutil
import semistream as ss
from semistream.workloads import sales

path, name, budget, rows = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
master = ss.open_master(path, io="direct")
def stream(count):
    return sales(count, products=master.rows, skew=1.0, batch_rows=16384)
# A first run compiles or loads the kernels and brings in libraries: that is the idle baseline.
for _ in ss.join(stream(100_000), master, "product_id", algorithm=name, memory=budget): pass
gc.collect()
process, peak, over, done = psutil.Process(), [0], [0], threading.Event()
baseline = process.memory_info().rss
def watch():
    while not done.wait(0.002):
        peak[0] = max(peak[0], process.memory_info().rss)
thread = threading.Thread(target=watch); thread.start()
joined = ss.join(stream(rows), master, "product_id", algorithm=name, memory=budget)
count = 0
for batch in joined:
    count += batch.num_rows
    over[0] = max(over[0], joined.stats.bytes_in_use)
done.set(); thread.join()
print(json.dumps({"growth": peak[0] - baseline, "accounted": over[0],
                  "peak": joined.stats.bytes_peak, "rows": count}))
"""


DRAINED = """
import gc, json, sys, threading
import psutil
import semistream as ss
from semistream.workloads import sales, sale_schema

path, threads, budget, rows = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
master = ss.open_master(path)
def drained(count, batch_rows):
    stream = sales(count, products=master.rows, skew=0.5, batch_rows=batch_rows)
    with ss.make_join("sweepjoin", master, on="product_id", schema=sale_schema(), memory=budget,
                      threads=threads) as join:
        results = sum(result.num_rows for batch in stream for result in join.drained(batch))
        return results, join.stats.bytes_peak
drained(300_000, 100_000)
gc.collect()
process, peak, done = psutil.Process(), [0], threading.Event()
baseline = process.memory_info().rss
def watch():
    while not done.wait(0.002):
        peak[0] = max(peak[0], process.memory_info().rss)
thread = threading.Thread(target=watch); thread.start()
results, accounted = drained(rows, 250_000)
done.set(); thread.join()
print(json.dumps({"growth": peak[0] - baseline, "peak": accounted, "rows": results}))
"""


def run(script: str, *arguments: object) -> Any:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def master(tmp_path_factory):
    path = tmp_path_factory.mktemp("soak") / "products.master"
    run(BUILD, path, MASTER_ROWS, BUILD_LIMIT)
    return path


@pytest.mark.parametrize("name", DISK_JOINS)
def test_resident_memory_stays_within_the_budget(master, name):
    rows = 300_000 if name == "inlj" else 4_000_000
    seen = run(JOIN, master, name, BUDGET, rows)
    print(name, seen)
    assert seen["rows"] == rows
    assert seen["accounted"] <= BUDGET
    assert seen["peak"] <= BUDGET
    assert seen["growth"] <= BUDGET + SLACK


@pytest.mark.parametrize("threads", [1, 2])
def test_drained_batches_stay_within_the_budget(master, threads):
    """With windows, which are memory of the process as long as they are open."""
    seen = run(DRAINED, master, threads, BUDGET, 5_000_000)
    print(threads, seen)
    assert seen["rows"] == 5_000_000
    assert seen["peak"] <= BUDGET
    assert seen["growth"] <= BUDGET + SLACK


def test_a_build_of_ten_million_rows_keeps_to_its_memory(tmp_path):
    seen = run(BUILD, tmp_path / "large.master", 10_000_000, BUILD_LIMIT)
    print(seen)
    assert seen["peak"] <= BUILD_LIMIT + BUILD_SLACK
    assert seen["reports"] > 10
