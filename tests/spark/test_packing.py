"""Rows packed by destination come back whole, in the right part and bucket; no Spark needed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from semistream import build_master
from semistream.core.errors import OptionError
from semistream.kernels.pages import shards_of
from semistream.spark.packing import Packer, unpacked
from semistream.spark.worker import Recipe
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
