"""Rows packed by destination come back whole, in the right part and bucket; no Spark needed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from semistream import build_master
from semistream.core.errors import OptionError
from semistream.kernels.pages import shards_of
from semistream.spark.packing import Packer, gathered, unpacked
from semistream.spark.worker import Recipe, borrowed
from semistream.store.file import open_master

ROWS = 20_000
STREAM = pa.table(
    {
        "n": np.arange(ROWS),
        "k": np.random.default_rng(3).integers(-ROWS, 2 * ROWS, ROWS),
        "text": [None if n % 3 == 0 else f"row {n}" for n in range(ROWS)],
    }
)


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("packing") / "m"
    build_master(path, pa.table({"k": np.arange(ROWS), "v": np.arange(ROWS) * 2}), "k", shards=3)
    return path


def recipe(master: Path) -> Recipe:
    return Recipe(
        name="test",
        master=str(master),
        on="k",
        key_names=("k",),
        how="inner",
        algorithm="auto",
        memory_bytes=4_000_000,
        columns=None,
        io="buffered",
        options={},
        stream_schema=STREAM.schema,
        output_schema=STREAM.schema,
        version=1,
    )


def test_every_row_comes_back_once_where_it_belongs(master: Path) -> None:
    ids, buckets = (4, 1, 7), 8
    packed = list(Packer(recipe(master), ids, buckets)(iter(STREAM.to_batches(1000))))
    with open_master(master) as opened:
        borders = opened.borders(buckets)
    assert len(borders) == buckets - 1
    came = []
    for values in packed:
        for row in range(values.num_rows):
            part, bucket, count = (values.column(i)[row].as_py() for i in range(3))
            data = values.column(3)[row].as_buffer()
            rows = pa.Table.from_batches(list(unpacked([data], STREAM.schema)))
            assert rows.num_rows == count
            keys = rows["k"].to_numpy()
            shard = np.empty(len(keys), np.int32)
            shards_of(keys, 3, shard)
            assert {ids[i] for i in shard.tolist()} == {part}
            assert set(np.searchsorted(borders, keys, side="right").tolist()) == {bucket}
            came.append(rows)
    assert pa.concat_tables(came).sort_by("n").equals(STREAM)


def test_values_may_be_put_together(master: Path) -> None:
    (packed,) = Packer(recipe(master), (0,))(iter(STREAM.to_batches(1000)))
    data = packed.column(3)[0].as_buffer().to_pybytes()
    twice = pa.Table.from_batches(list(unpacked([pa.py_buffer(data + data)], STREAM.schema)))
    assert twice.num_rows == 2 * ROWS
    assert twice.slice(ROWS).equals(STREAM)


def test_batches_are_put_together_up_to_a_number_of_rows_or_bytes() -> None:
    batches = STREAM.to_batches(1000)
    sizes = [one.num_rows for one in gathered(batches, 7000)]
    assert sizes == [7000, 7000, 6000]
    most = batches[0].nbytes * 4
    by_size = list(gathered([batches[0].slice(0, 0), *batches], size_bytes=most))
    assert all(one.nbytes <= most for one in by_size)
    assert 3000 <= by_size[0].num_rows <= 4000
    assert pa.Table.from_batches(by_size).equals(STREAM)
    # One that is too large by itself comes as it is.
    assert [one.num_rows for one in gathered(batches, size_bytes=1)] == [1000] * len(batches)


def test_rows_in_hand_are_counted_with_the_memory(master: Path) -> None:
    one = recipe(master)
    with borrowed(one) as held:
        did = held.did_since(held.operator.stats)
        limit = held.operator.budget.limit_bytes
    assert did.bytes_limit == one.memory_bytes == limit + one.hand_bytes
    assert did.bytes_by_component["rows in hand"] == one.hand_bytes == one.memory_bytes // 8
    assert sum(did.bytes_by_component.values()) == did.bytes_in_use <= did.bytes_peak
    held.close()


def test_a_shard_opens_alone(master: Path) -> None:
    with open_master(master) as whole:
        parts = [open_master(master, shard=shard) for shard in range(3)]
        assert sum(part.rows for part in parts) == whole.rows == ROWS
        assert sum(part.pages for part in parts) == whole.pages
        assert all(part.index_bytes < whole.index_bytes for part in parts)
        for part in parts:
            assert [bad for _, bad in part.bad_pages() if bad is not None] == []
            part.close()
    with pytest.raises(OptionError, match="no shard 3"):
        open_master(master, shard=3)
