"""Every system of the comparison joins right, and says what it lacks."""

from __future__ import annotations

import platform
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from semistream.bench.checksum import Checksum
from semistream.bench.oracle import JOINED, ProductOracle
from semistream.bench.peers import OURS, PEERS, Peer, PeerError
from semistream.bench.peers.base import (
    batch_of,
    drop_from_cache,
    is_cached,
    read_into_cache,
    records_of,
    with_products,
)
from semistream.bench.side_by_side import (
    COLD,
    WARM,
    Cell,
    PeersOptions,
    Stream,
    Turns,
    available,
    growth_options,
    run_peers,
)
from semistream.core.errors import SemiStreamError
from semistream.testing import ManualClock
from semistream.workloads import product_rows, sales

ROWS = 5000
MEMORY = 64_000_000  # DuckDB and the servers start with no less than some megabytes


@pytest.mark.parametrize("cold", [False, True], ids=[WARM, COLD])
@pytest.mark.parametrize("name", list(PEERS))
def test_joins_as_the_oracle_does(name: str, open_folder: Path, cold: bool) -> None:
    peer = made(name, open_folder)
    # Batches of several sizes, one key often, and keys that have no partner.
    stream = sales(3000, products=ROWS, skew=1.0, missing=0.1, batch_rows=1000).read_all()
    batches = [*stream.to_batches(), *stream.slice(0, 7).to_batches()]
    expected, produced = Checksum(), Checksum()
    with ProductOracle(ROWS) as oracle:
        for one in batches:
            for batch in oracle.joined(pa.Table.from_batches([one])):
                expected.add(batch)
    peer.open(MEMORY, cold=cold)
    with closing(peer):
        results = []
        for batch in batches:
            if cold:
                peer.drop_cache()
            results.append(peer.join(batch))
        results.append(peer.drain())
    for table in results:
        if table is not None:
            for batch in table.select(JOINED.names).cast(JOINED).to_batches():
                produced.add(batch)
    assert 0 < expected.rows < 3007
    assert (produced.rows, produced.value) == (expected.rows, expected.value)


def made(name: str, open_folder: Path) -> Peer:
    kind = PEERS[name]
    lack = kind.missing()
    if lack is not None:
        pytest.skip(lack)
    peer = kind(open_folder, ROWS)
    peer.build()
    return peer


def test_a_store_is_built_once(open_folder: Path) -> None:
    peer = made("sqlite", open_folder)
    before = (peer.store / "products.sqlite").stat()
    peer.build()
    after = (peer.store / "products.sqlite").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert not list(open_folder.glob("*.sqlite-*")), "what it was built in is gone"


def test_records_keep_products() -> None:
    batch = product_rows(np.array([3, 1, 4, 1]))
    assert batch_of(records_of(batch)).equals(batch)
    part = batch.slice(1, 2)
    assert batch_of(records_of(part)).equals(part)


def test_sales_whose_product_was_not_found_are_left_out() -> None:
    (batch,) = sales(4, products=10, skew=0.0).read_all().to_batches()
    batch = batch.set_column(0, batch.schema.field(0), pa.array([5, 2, 9, 5]))
    keys, place = np.unique([5, 2, 9, 5], return_inverse=True)
    for found in ([5, 2], [9], [], [2, 5, 9]):
        joined = with_products(batch, keys, place, product_rows(np.array(found, np.int64)))
        wanted = [key for key in (5, 2, 9, 5) if key in found]
        assert joined.column("product_id").to_pylist() == wanted
        prices = product_rows(np.array(wanted, np.int64)).column("price")
        assert joined.column("price").to_pylist() == prices.to_pylist()


def test_a_system_that_is_not_installed_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PEERS["lmdb"], "package", "no_such_package")
    told: list[str] = []
    kinds = available(["lmdb", "sqlite"], tell=told.append)
    assert [kind.name for kind in kinds] == ["sqlite"]
    assert "no_such_package" in told[0]
    assert "pip install 'semistream[peers]'" in told[0]


def test_dropped_files_are_read_again(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 10_000)
    drop_from_cache(tmp_path)
    drop_from_cache(tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == b"x" * 10_000


SMALL = PeersOptions(
    rows=ROWS,
    memories=("2MB", "3MB"),
    skews=(1, 0),
    batch_rows=(2000, 500),
    systems=(*OURS, "sqlite"),
    rounds=2,
    seconds=0.05,
    stream_rows=4000,
)


def test_the_grid_varies_one_axis_at_a_time() -> None:
    points = [(cell.memory, cell.skew, cell.batch_rows) for cell in SMALL.cells]
    middle = [("2MB", 1, 2000), ("2MB", 1, 500), ("3MB", 1, 2000), ("2MB", 0, 2000)]
    assert points == 2 * [*middle, ("2MB", 0, 500)]
    assert [cell.cache for cell in SMALL.cells] == [WARM] * 5 + [COLD] * 5
    grown = growth_options(SMALL, 7000, 2_000_000)
    assert [(cell.memory, cell.cache) for cell in grown.cells] == [("2000000", WARM)]
    assert grown.systems == OURS


def test_all_cells_are_verified_and_have_ratios(open_folder: Path) -> None:
    done = list(run_peers(SMALL, open_folder))
    assert len(done) == 3 * len(SMALL.cells)
    for one in done:
        assert one.verified, one
        assert one.rows_per_s > 0
        assert len(one.rounds) in (1, 2)
        assert one.spread >= 0
        assert (one.hit_share is not None) == (one.system in OURS)
        if one.system == OURS[0]:
            assert one.ratio_to_semistream == 1.0


def test_the_first_of_many_micro_batches_of_a_turn_does_not_count(open_folder: Path) -> None:
    """Each takes half a second by this clock: turns have time for many of them, or for two."""

    class Ticking(ManualClock):
        def now_ns(self) -> int:
            self.advance(0.5)
            return super().now_ns()

    for turn_s, batches in [(8, 1 + 16), (1, 2)]:
        options = replace(SMALL, systems=("polars",), rounds=1, seconds=2.0 * turn_s)
        stream = Stream(sales(3000, products=ROWS, batch_rows=3000).read_all().to_batches()[0])
        with ProductOracle(ROWS) as oracle:
            expected = oracle.expected([stream.rows])
        cell = Cell("64MB", 1.0, 1000, WARM)
        peer = made("polars", open_folder)
        with closing(Turns(peer, cell, options, stream, expected, Ticking())) as turns:
            turns.warm_up()
            before = turns._fed
            turns.round()
            assert turns._fed - before == 1000 * batches
            turns.finish()
            assert turns.result().verified
            assert turns.result().rounds == (2000.0,)


def test_a_system_without_enough_memory_is_a_result(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Peer, batch: pa.RecordBatch) -> pa.Table:
        raise PeerError("sqlite is out of memory")

    monkeypatch.setattr(PEERS["sqlite"], "join", fail)
    cell = growth_options(SMALL, ROWS, 2_000_000)
    found = {one.system: one for one in run_peers(replace_systems(cell), open_folder)}
    assert found["sqlite"].why_not == "sqlite is out of memory"
    assert (found["sqlite"].rows_per_s, found["sqlite"].verified) == (0.0, False)
    assert found[OURS[0]].verified


def replace_systems(options: PeersOptions) -> PeersOptions:
    return PeersOptions(**{**vars(options), "systems": (OURS[0], "sqlite")})


def test_a_wrong_result_is_found_out(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = PEERS["sqlite"].join

    def wrong(self: Peer, batch: pa.RecordBatch) -> pa.Table:
        return right(self, batch).slice(1)

    monkeypatch.setattr(PEERS["sqlite"], "join", wrong)
    cell = replace_systems(growth_options(SMALL, ROWS, 2_000_000))
    found = {one.system: one for one in run_peers(cell, open_folder)}
    assert not found["sqlite"].verified
    assert found[OURS[0]].verified


@pytest.mark.parametrize(
    "wrong",
    [
        {"rows": 0},
        {"systems": ("oracle",)},
        {"caches": ("tepid",)},
        {"batch_rows": (0,)},
        {"rounds": 0},
        {"skews": ()},
    ],
)
def test_options_that_cannot_be(wrong: dict[str, object]) -> None:
    with pytest.raises(SemiStreamError):
        PeersOptions(**{**vars(SMALL), **wrong})


def test_files_that_are_cached_are_known(tmp_path: Path) -> None:
    """Linux tells since 6.5; else nothing is taken to be cached, and files are read."""
    path = tmp_path / "file"
    with path.open("wb") as made:
        made.truncate(3 << 20)
    with path.open("rb") as opened:
        assert not is_cached(opened.fileno())
        read_into_cache(path)
        told = tuple(map(int, platform.release().split("-")[0].split(".")[:2])) >= (6, 5)
        assert is_cached(opened.fileno()) == told
