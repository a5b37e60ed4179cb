"""SSIJ: ranges, phases, the cache, deadlines, updates, and what its paper printed wrongly."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import semistream as ss
from semistream.checks.driving import Run, cut
from semistream.core.conditions import Condition
from semistream.core.errors import OptionError, SchemaError
from semistream.core.join import HOWS
from semistream.joins.ssij import SemiStreamedIndexJoin
from semistream.store.file import FileMaster
from semistream.testing import ManualClock
from tests.examples import examples

ROWS = 3000
DAY = dt.date(2026, 1, 1)


def keys_of(kind: str, numbers: Any) -> pa.Array:
    if kind == "date":
        return pa.array([DAY + dt.timedelta(days=int(n)) for n in numbers])
    if kind == "timestamp":
        start = dt.datetime(2026, 1, 1)
        return pa.array([start + dt.timedelta(minutes=int(n)) for n in numbers], pa.timestamp("ms"))
    return pa.array(numbers, pa.int64())


def master_table(kind: str = "integer", rows: int = ROWS) -> pa.Table:
    rng = np.random.default_rng(3)
    numbers = np.sort(rng.integers(0, rows // 2, rows))
    return pa.table(
        {
            "k": keys_of(kind, numbers),
            "weight": rng.integers(0, 100, rows),
            "text": [f"row {i}" * (i % 3) for i in range(rows)],
        }
    )


def stream_table(kind: str = "integer", rows: int = 500) -> pa.Table:
    rng = np.random.default_rng(4)
    numbers = rng.integers(-40, ROWS // 2 + 40, rows)
    return pa.table(
        {
            "event": np.arange(rows),
            "at": keys_of(kind, numbers).filter(pa.array(np.ones(rows, bool))),
            "least": rng.integers(0, 100, rows),
            "note": [None if i % 7 == 0 else "n" * (i % 20) for i in range(rows)],
        }
    )


def make(master: Any, schema: pa.Schema, **arguments: Any) -> SemiStreamedIndexJoin:
    join = ss.make_join("ssij", master, schema=schema, **arguments)
    assert isinstance(join, SemiStreamedIndexJoin)
    return join


def rows_of(table: pa.Table) -> Counter[tuple[Any, ...]]:
    return Counter(zip(*(column.to_pylist() for column in table.columns), strict=True))


# Ranges.

RANGES: dict[str, tuple[str, Condition, str]] = {
    "band": ("integer", ss.band("at", "k", width=3), "abs(s.at - m.k) <= 3"),
    "band and more": (
        "integer",
        ss.band("at", "k", below=20, above=0) & ss.compare("least", "<=", "weight"),
        "s.at BETWEEN m.k - 20 AND m.k AND s.least <= m.weight",
    ),
    "above": ("integer", ss.compare("at", ">", "k", offset=1400), "s.at > m.k + 1400"),
    "days": (
        "date",
        ss.band("at", "k", width=dt.timedelta(days=2)),
        "s.at BETWEEN m.k - INTERVAL 2 DAY AND m.k + INTERVAL 2 DAY",
    ),
    "minutes": (
        "timestamp",
        ss.band("at", "k", above=dt.timedelta(minutes=9)),
        "s.at BETWEEN m.k AND m.k + INTERVAL 9 MINUTE",
    ),
    "equal": ("integer", ss.compare("at", "==", "k"), "s.at = m.k"),
    "no range": ("integer", ss.compare("least", ">", "weight", offset=95), "s.least > m.weight+95"),
}


def in_duckdb(stream: pa.Table, master: pa.Table, where: str, how: str) -> Counter[Any]:
    pairs = "s.*, m.*" if how in ("inner", "left") else "s.*"
    inside = f"EXISTS (SELECT 1 FROM m WHERE {where})"
    query = {
        "inner": f"SELECT {pairs} FROM s JOIN m ON {where}",
        "left": f"SELECT {pairs} FROM s LEFT JOIN m ON {where}",
        "semi": f"SELECT {pairs} FROM s WHERE {inside}",
        "anti": f"SELECT {pairs} FROM s WHERE NOT {inside}",
    }[how]
    with duckdb.connect(":memory:") as database:
        database.register("s", stream)
        database.register("m", master)
        return Counter(database.execute(query).fetchall())


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("name", RANGES)
def test_ranges_are_those_of_duckdb(name: str, shards: int, tmp_path: Path) -> None:
    kind, condition, where = RANGES[name]
    master, stream = master_table(kind), stream_table(kind)
    ss.build_master(tmp_path / "m", master, "k", page_size=4096, shards=shards)
    for how in HOWS:
        for memory in (400_000, 3_000_000):
            run = Run(
                make(tmp_path / "m", stream.schema, condition=condition, how=how, memory=memory)
            )
            for number, batch in enumerate(cut(stream, 70)):
                run.offer(batch)
                for _ in range(number % 3):
                    run.step()
            run.finish()
            assert rows_of(run.table()) == in_duckdb(stream, master, where, how), (how, memory)
            run.join.close()


def test_a_range_reads_its_pages_only(tmp_path: Path) -> None:
    ss.build_master(tmp_path / "m", master_table(), "k", page_size=4096)
    stream = stream_table().slice(0, 1).set_column(1, "at", pa.array([700]))
    with ss.open_master(tmp_path / "m") as master:
        condition = ss.band("at", "k", width=40)
        with make(master, stream.schema, condition=condition, memory="2MB") as join:
            join.push(cut(stream)[0])
            results = sum(batch.num_rows for batch in join.finish())
            assert results > 100
            assert join.stats.pages_read <= results // 20 + 2 < master.pages


# What was printed wrongly.


def printed_online_phase(
    cached: list[int], rows: list[tuple[int, int]], room: int
) -> tuple[Counter[tuple[int, int]], dict[int, list[int]]]:
    """Algorithm 1 as printed, for rows (number, page): pairs emitted, and the inverted index.

    Line 13 asks the live cache, from which line 18 removes pages that were joined before.
    """
    emitted = Counter((row, page) for row, page in rows if page in cached)
    waiting: dict[int, list[int]] = {}
    live, taken = list(cached), 0
    for row, page in rows:
        if page in live:
            continue
        waiting.setdefault(page, []).append(row)
        taken += 1
        if taken > room and live:
            live.pop(0)
            room += 1
    return emitted, waiting


def test_an_evicted_page_gives_no_pair_twice(tmp_path: Path) -> None:
    """A page is joined online, then evicted for rows of the same time: printed, pairs repeat."""
    rows = [(0, 7), (1, 8), (2, 0), (3, 9), (4, 0)]
    emitted, waiting = printed_online_phase([0, 1], rows, room=1)
    again = [(row, page) for page, found in waiting.items() for row in found]
    assert max((emitted + Counter(again)).values()) == 2, "the printed version is not wrong here"

    table = pa.table({"k": np.arange(4000), "value": np.arange(4000)})
    ss.build_master(tmp_path / "m", table, "k", page_size=4096)
    rng = np.random.default_rng(5)
    schema = pa.schema([("k", pa.int64()), ("event", pa.int64())])
    events = 0
    with make(
        tmp_path / "m", schema, on="k", memory=300_000, burst_rows=100_000, ib_rows=200
    ) as join:
        run, evictions = Run(join), 0
        for round_ in range(30):
            hot = rng.integers(0, 60, 400)
            cold = rng.integers(0, 4000, 9000 if round_ % 3 == 2 else 100)
            keys = rng.permutation(np.concatenate([hot, cold]))
            batch = pa.RecordBatch.from_pydict(
                {"k": keys, "event": np.arange(events, events + len(keys))}, schema=schema
            )
            events += len(keys)
            before = join.cached_rows
            while batch.num_rows:
                batch = batch.slice(run.push(batch))
                evictions += join.cached_rows < before
                run.step()
                before = join.cached_rows
            if round_ % 3 == 1:
                run.drain()
        run.finish()
        table = run.table()
    assert evictions > 0, "nothing was evicted to make room for rows"
    assert Counter(table["event"].to_pylist()) == Counter(range(events))
    assert table["k"].equals(table["value"])


# The cache and the plan.


def product_master(path: Path, rows: int = 20_000) -> FileMaster:
    table = pa.table({"k": np.arange(rows), "value": np.arange(rows) * 7, "pad": ["p" * 60] * rows})
    ss.build_master(path, table, "k", page_size=4096)
    return ss.open_master(path)


def zipf_batches(rows: int, keys: int, size: int = 1000, seed: int = 1) -> list[pa.RecordBatch]:
    rng = np.random.default_rng(seed)
    weight = 1 / np.arange(1, keys + 1)
    drawn = rng.permutation(keys)[rng.choice(keys, rows, p=weight / weight.sum())]
    return cut(pa.table({"k": drawn, "event": np.arange(rows)}), size)


def pages_per_row(master: FileMaster, batches: list[pa.RecordBatch], **options: Any) -> float:
    with make(master, batches[0].schema, on="k", memory="400kB", **options) as join:
        results = 0
        for batch in batches:
            rest = batch
            while rest.num_rows:
                rest = rest.slice(join.push(rest))
                result = join.step() if rest.num_rows else join.take()
                results += result.num_rows if result is not None else 0
        results += sum(batch.num_rows for batch in join.finish())
        assert results == sum(batch.num_rows for batch in batches)
        return join.stats.pages_per_row


def test_utility_beats_lru_and_sharing_beats_fixed_shares(tmp_path: Path) -> None:
    with product_master(tmp_path / "m") as master:
        batches = zipf_batches(120_000, 20_000)
        utility = pages_per_row(master, batches)
        assert utility < pages_per_row(master, batches, policy="lru")
        shares = [pages_per_row(master, batches, cache_share=share) for share in (0, 0.2, 0.5, 0.7)]
        assert utility < 1.1 * min(shares), shares


@given(
    seed=st.integers(0, 1000),
    skew=st.booleans(),
    max_scan=st.sampled_from([None, 1, 7, 60]),
    seek_s=st.sampled_from([1e-5, 2e-4, 8e-3]),
)
@settings(deadline=None, max_examples=examples(12))
def test_no_join_phase_costs_more_than_the_bound(
    seed: int, skew: bool, max_scan: int | None, seek_s: float, bound_master: FileMaster
) -> None:
    """A seek for each page, or a scan of everything in pieces of maxScan (paper, §V)."""
    page_s = 1e-4
    rng = np.random.default_rng(seed)
    keys = rng.integers(0, 4000, 9000) if not skew else (4000 * rng.random(9000) ** 4).astype(int)
    batches = cut(pa.table({"k": keys, "event": np.arange(9000)}), 700)
    options = {"max_scan": max_scan, "seek_s": seek_s, "page_s": page_s, "sb_rows": 500}
    pages = bound_master.pages
    whole = -(-pages // max_scan) if max_scan else 1
    with make(bound_master, batches[0].schema, on="k", memory="260kB", **options) as join:
        run, phases, end = Run(join), [], join._end_join

        def checked() -> None:
            end()
            seeks, read = join._last_scans
            wanted = join._pages_wanted
            bound = min(wanted * (seek_s + page_s), whole * seek_s + pages * page_s)
            assert seeks * seek_s + read * page_s <= bound * (1 + 1e-9)
            phases.append(wanted)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(join, "_end_join", checked)
            for batch in batches:
                run.offer(batch)
            run.finish()
    assert len(phases) > 4


@pytest.fixture(scope="module")
def bound_master(tmp_path_factory: pytest.TempPathFactory) -> FileMaster:
    return product_master(tmp_path_factory.mktemp("bound") / "m", 4000)


def test_a_rare_row_does_not_starve(tmp_path: Path) -> None:
    """While all others are answered from the cache, SB never fills."""
    with product_master(tmp_path / "m", 4000) as master:
        schema = pa.schema([("k", pa.int64()), ("event", pa.int64())])

        def batch(keys: Any, event: int) -> pa.RecordBatch:
            return pa.RecordBatch.from_pydict(
                {"k": keys, "event": np.full(len(keys), event)}, schema=schema
            )

        with make(master, schema, on="k", memory="200kB") as join:
            run, hot = Run(join), batch(np.zeros(1000, np.int64), 0)
            for _ in range(5):
                run.offer(hot)
            run.drain()
            run.offer(batch([3333], 1))
            for _ in range(2000):
                rest = hot
                while rest.num_rows:
                    rest = rest.slice(run.push(rest))
                    run.step()
                if any(1 in found["event"].to_pylist() for found in run.batches):
                    break
                run.batches.clear()
            else:
                raise AssertionError("the rare row waits for ever")


# Deadlines.


class DiskClock(ManualClock):
    """A clock that goes on by itself while a disk of old reads."""

    join: SemiStreamedIndexJoin | None = None

    def now_ns(self) -> int:
        spent = self.join.stats.modelled_disk_s() if self.join is not None else 0.0
        return super().now_ns() + int(spent * 1e9)


@pytest.mark.parametrize("max_wait", [3.0, 8.0])
def test_no_row_is_later_than_its_deadline(max_wait: float, tmp_path: Path) -> None:
    with product_master(tmp_path / "m", 4000) as master:
        batches = zipf_batches(6000, 4000, size=20)
        clock = DiskClock()
        with make(
            master,
            batches[0].schema,
            on="k",
            memory="400kB",
            clock=clock,
            max_wait=max_wait,
            seek_s=8e-3,
            page_s=1e-4,
        ) as join:
            came: dict[int, int] = {}
            late: list[float] = []
            phases = 0
            events = 0

            def steps() -> None:
                # A phase with more results than find room goes on with the next step.
                while (result := join.step()) is not None:
                    now = clock.now_ns()
                    late.extend((now - came.pop(e)) / 1e9 for e in result["event"].to_pylist())

            clock.join = None
            for batch in batches:
                # 200 rows a second: 20 every tenth of a second, and as many steps.
                clock.advance(0.1)
                rest = batch
                while rest.num_rows:
                    now = clock.now_ns()
                    accepted = join.push(rest)
                    came.update((e, now) for e in rest["event"].to_pylist()[:accepted])
                    rest = rest.slice(accepted)
                    events += accepted
                    before = join.stats.requests
                    clock.join = join
                    steps()
                    phases += join.stats.requests > before
            while join.stats.rows_waiting:
                clock.advance(0.1)
                steps()
        assert not came
        assert len(late) == events
        assert max(late) <= max_wait
        # They wait as long as they may: a phase for every batch would be no art.
        assert phases < len(batches) / 3
        assert np.mean(late) > max_wait / 20


def test_without_urgency_rows_are_pending(tmp_path: Path) -> None:
    with product_master(tmp_path / "m", 4000) as master:
        clock = ManualClock()
        batch = zipf_batches(50, 4000)[0]
        with make(master, batch.schema, on="k", memory="400kB", clock=clock, max_wait=60.0) as join:
            join.push(batch)
            for _ in range(5):
                assert join.step() is None
            assert join.stats.pages_read == 0
            clock.advance(60.0)
            assert join.step() is not None
            assert join.stats.rows_waiting == 0


# Updates of R.


def version(path: Path, number: int, keys: int) -> FileMaster:
    """Some keys, each over several pages; all rows carry the version."""
    k = np.repeat(np.arange(keys), 150)
    table = pa.table({"k": k, "version": np.full(len(k), number), "row": np.arange(len(k))})
    ss.build_master(path, table, "k", page_size=4096)
    return ss.open_master(path)


@pytest.mark.parametrize("memory", ["300kB", "4MB"])
@pytest.mark.parametrize("ranged", [False, True])
def test_each_row_sees_one_version(memory: str, ranged: bool, tmp_path: Path) -> None:
    versions = [version(tmp_path / f"v{n}", n, 12 + 3 * n) for n in range(3)]
    schema = pa.schema([("s", pa.int64()), ("event", pa.int64())])
    rng = np.random.default_rng(6)
    how: dict[str, Any] = {"on": {"s": "k"}}
    if ranged:
        how = {"condition": ss.band("s", "k", width=1)}
    with make(versions[0], schema, how="left", memory=memory, **how) as join:
        run, accepted = Run(join), 0
        seen: dict[int, int] = {}
        for number in range(90):
            keys = rng.integers(0, 20, 7)
            batch = pa.RecordBatch.from_pydict(
                {"s": keys, "event": np.arange(accepted, accepted + 7)}, schema=schema
            )
            seen |= dict(enumerate(keys.tolist(), start=accepted))
            accepted += 7
            run.offer(batch)
            for _ in range(number % 4):
                run.step()
            if number in (30, 31, 60):
                before = join.stats
                join.master_changed(versions[min(1 + number // 60, 2)])
                run.look()
                assert join.stats.pages_read >= before.pages_read
        run.finish()
        table = run.table()
    found: dict[int, Counter[int | None]] = {}
    versions_seen = zip(table["event"].to_pylist(), table["version"].to_pylist(), strict=True)
    for event, one in versions_seen:
        found.setdefault(event, Counter())[one] += 1
    assert set(found) == set(range(accepted))
    used = set()
    for event, counts in found.items():
        assert len(counts) == 1, f"row {event} sees {counts}"
        ((one, count),) = counts.items()
        if one is None:
            assert count == 1
            continue
        used.add(one)
        near = [key for key in range(12 + 3 * one) if abs(key - seen[event]) <= int(ranged)]
        assert count == 150 * len(near)
    assert used == {0, 1, 2}
    for master in versions:
        master.close()


def test_a_version_with_other_columns_is_refused(tmp_path: Path) -> None:
    with version(tmp_path / "a", 0, 3) as master, product_master(tmp_path / "b", 10) as other:
        schema = pa.schema([("k", pa.int64())])
        with make(master, schema, on="k", memory="300kB") as join:
            with pytest.raises(SchemaError, match="other columns"):
                join.master_changed(other)
            join.push(pa.RecordBatch.from_pydict({"k": [1, 2]}, schema=schema))
            assert sum(batch.num_rows for batch in join.finish()) == 300


@pytest.mark.parametrize(
    "options",
    [
        {"ib_rows": 0},
        {"sb_rows": -1},
        {"max_scan": 0},
        {"burst_rows": -1},
        {"cache_share": 1.0},
        {"policy": "fifo"},
        {"seek_s": 0.0},
        {"max_wait": -1.0},
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], bound_master: FileMaster) -> None:
    with pytest.raises(OptionError, match=next(iter(options))):
        make(bound_master, pa.schema([("k", pa.int64())]), on="k", **options)
