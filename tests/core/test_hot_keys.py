"""The most frequent keys of a stream, from a sample."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from semistream.core.hot_keys import MOST_CHARACTERS, MOST_SAMPLED, HotKeys, merged


def test_the_hottest_key_is_found_with_its_share() -> None:
    generator = np.random.default_rng(1)
    hot = HotKeys(["k"])
    for _ in range(10):
        keys = np.where(generator.random(10_000) < 0.3, 7, generator.integers(0, 10**9, 10_000))
        hot.see(pa.record_batch({"k": keys, "other": keys}))
    top = hot.top(3)
    key, count = next(iter(top.items()))
    assert key == "7"
    assert 0.25 < count / hot.sampled < 0.35
    assert len(top) == 3


def test_batches_pass_and_little_is_looked_at() -> None:
    hot = HotKeys(["k"])
    batch = pa.record_batch({"k": pa.array(range(100_000))})
    passed = list(hot.watched([batch] * 100))
    assert sum(one.num_rows for one in passed) == 10_000_000
    assert hot.sampled < MOST_SAMPLED + 1000


def test_keys_of_every_kind_are_text() -> None:
    long = "x" * 200
    kinds = {
        "text": ["<script>", "<script>", long],
        "bytes": [b"\x00\xff", b"\x00\xff", b"a"],
        "null": pa.array([None, None, 1], pa.int64()),
        "list": [[1, 2], [1, 2], [3]],
    }
    found = {}
    for name, values in kinds.items():
        hot = HotKeys([name])
        hot.see(pa.record_batch({name: values}))
        found[name] = hot.top(2)
    assert found["text"] == {"<script>": 2, "x" * (MOST_CHARACTERS - 1) + "…": 1}
    assert found["bytes"]["00ff"] == 2
    assert found["null"]["null"] == 2
    assert found["list"]["[1, 2]"] == 2


def test_keys_of_several_columns() -> None:
    hot = HotKeys(["a", "b"])
    hot.see(pa.record_batch({"a": [1, 1, 2], "b": ["x", "x", "y"]}))
    assert hot.top(5) == {"1 | x": 2, "2 | y": 1}


def test_nothing_seen() -> None:
    hot = HotKeys(["k"])
    hot.see(pa.record_batch({"k": pa.array([], pa.int64())}))
    assert (hot.top(3), hot.sampled) == ({}, 0)
    assert merged([{"a": 1}, {"a": 2, "b": 1}, {}]) == {"a": 3, "b": 1}
