"""A change feed beside a stream, run by `make soak`: what it costs, and that rows see one version.

Both at the rates of the project's promise: a thousand changes a second, a hundred thousand stream
rows a second. The feed runs in a process of its own, as it would.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from multiprocessing.synchronize import Event
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import semistream as ss
from semistream.store.manifest import read_manifest

pytestmark = pytest.mark.slow

ROWS = 2_000_000
MARKED = 100
"""Keys that change in every version: what they say is the version's generation."""

CHANGES_PER_S, STREAM_PER_S, SECONDS = 1000, 100_000, 12
BATCH = 10_000


def rows(keys: np.ndarray[tuple[int], np.dtype[np.int64]], generation: int) -> pa.Table:
    count = len(keys)
    columns = {f"c{i}": np.full(count, generation * 10 + i) for i in range(12)}
    return pa.table({"id": keys, "generation": np.full(count, generation), **columns})


def feed(path: Path, stop: Event) -> None:
    """A version a second, with a thousand changes spread over the master."""
    random = np.random.default_rng(1)
    generation, begun = 1, time.monotonic()
    while not stop.wait(max(begun + generation - time.monotonic(), 0)):
        others = random.choice(ROWS, CHANGES_PER_S - MARKED, replace=False)
        keys = np.unique(np.concatenate([np.arange(MARKED), others]))
        ss.apply_changes(path, rows(keys, generation), op=None)
        generation += 1


def paced(rate: float | None, seconds: float) -> Iterator[pa.RecordBatch]:
    random = np.random.default_rng(2)
    begun, sent = time.monotonic(), 0
    while time.monotonic() < begun + seconds:
        keys = np.concatenate([random.zipf(1.1, BATCH - MARKED) % ROWS, np.arange(MARKED)])
        yield pa.record_batch({"id": keys, "batch": np.full(BATCH, sent // BATCH)})
        sent += BATCH
        if rate is not None:
            time.sleep(max(begun + sent / rate - time.monotonic(), 0))


def measured(path: Path, rate: float | None) -> tuple[float, int]:
    """Rows joined per second, and how many versions were seen; every batch must see one."""
    seen: dict[int, int] = {}
    count, begun = 0, time.monotonic()
    stream = paced(rate, SECONDS)
    for batch in ss.join(stream, path, on="id", memory="64MB", follow=True):
        count += batch.num_rows
        marked = batch.filter(pa.compute.less(batch.column("id"), MARKED))
        pairs = zip(
            marked.column("batch").to_pylist(), marked.column("generation").to_pylist(), strict=True
        )
        for number, generation in set(pairs):
            assert seen.setdefault(number, generation) == generation, "a batch saw two versions"
    return count / (time.monotonic() - begun), len(set(seen.values()))


@pytest.mark.parametrize("rate", [STREAM_PER_S, None], ids=["100 k rows/s", "as fast as it goes"])
def test_a_feed_beside_a_stream(rate: float | None, tmp_path: Path) -> None:
    path = tmp_path / "m"
    ss.build_master(path, rows(np.arange(ROWS), 0), "id", fill=0.8)
    measured(path, rate)  # loads kernels
    alone, versions = measured(path, rate)
    assert versions == 1
    stop = multiprocessing.get_context("spawn").Event()
    process = multiprocessing.get_context("spawn").Process(target=feed, args=(path, stop))
    process.start()
    while read_manifest(path).version < 3:
        time.sleep(0.1)
    try:
        beside, versions = measured(path, rate)
        published = read_manifest(path).version
    finally:
        stop.set()
        process.join()
    print(f"alone {alone:,.0f} rows/s, beside a feed {beside:,.0f}, {versions} versions seen")
    assert versions >= SECONDS // 2
    assert published >= SECONDS // 2
    if rate is not None:
        assert beside > 0.8 * alone
