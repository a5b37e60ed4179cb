"""The checksum: blind to order, and to nothing else."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from semistream.bench.checksum import Checksum, row_hashes
from semistream.bench.oracle import JOINED, Expected, ProductOracle
from semistream.workloads import product_rows, sale_schema, sales


def joined(rows: int, products: int = 50) -> pa.RecordBatch:
    """Sales joined by hand: a product's columns are a function of its id."""
    table = pa.Table.from_batches(sales(rows, products=products)).combine_chunks()
    batch = table.to_batches()[0]
    partner = product_rows(batch.column("product_id").to_numpy())
    columns = [*batch.columns, *partner.columns[1:]]
    return pa.RecordBatch.from_arrays(columns, schema=JOINED)


def checksum(*batches: pa.RecordBatch) -> tuple[int, int]:
    total = Checksum()
    for batch in batches:
        total.add(batch)
    return total.value, total.rows


def test_order_and_batches_do_not_matter() -> None:
    batch = joined(1000)
    shuffled = batch.take(pa.array(np.random.default_rng(1).permutation(1000)))
    assert checksum(shuffled) == checksum(batch)
    assert checksum(batch.slice(0, 300), batch.slice(300)) == checksum(batch)
    assert checksum(batch.slice(0, 0)) == (0, 0)


@pytest.mark.parametrize("column", JOINED.names)
def test_every_column_counts(column: str) -> None:
    batch = joined(10)
    at = batch.schema.get_field_index(column)
    other = batch.column(column).take(pa.array([1, 0, *range(2, 10)]))
    swapped = batch.set_column(at, batch.schema.field(at), other)
    if not other.equals(batch.column(column)):
        assert checksum(swapped) != checksum(batch)


def test_columns_of_any_width() -> None:
    batch = pa.record_batch(
        {
            "a": pa.array([1, 2, 3], pa.int8()),
            "b": pa.array([1, 2, 3], pa.int16()),
            "c": pa.array([b"abc", b"def", b"ghi"], pa.binary(3)),
        }
    )
    assert len(set(row_hashes(batch).tolist())) == 3
    assert row_hashes(batch.slice(1)).tolist() == row_hashes(batch).tolist()[1:]


def test_the_oracle_gives_every_prefix() -> None:
    batch = joined(500)
    stream = list(sales(500, products=50, batch_rows=64))
    with ProductOracle(50) as oracle:
        expected = oracle.expected(stream)
    for rows in (0, 1, 63, 64, 65, 499, 500):
        assert expected.of_prefix(rows) == checksum(batch.slice(0, rows))
    value, count = checksum(batch, batch, batch.slice(0, 7))
    assert expected.of_prefix(1007) == (value, count)


def test_sales_without_a_partner_have_no_result() -> None:
    stream = list(sales(500, products=50, missing=0.5))
    with ProductOracle(50) as oracle:
        expected = oracle.expected(stream)
    ids = stream[0].column("product_id").to_numpy()
    assert expected.of_prefix(500)[1] == int((ids < 50).sum()) < 500


def test_an_empty_stream() -> None:
    with ProductOracle(5) as oracle:
        expected = oracle.expected([pa.RecordBatch.from_pylist([], schema=sale_schema())])
    assert expected.of_prefix(0) == (0, 0)
    assert isinstance(expected, Expected)
