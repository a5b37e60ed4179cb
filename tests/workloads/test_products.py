"""The papers' tables: exact row sizes, values that anyone can compute again, slices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from semistream.core.errors import OptionError
from semistream.workloads import (
    permute,
    product_rows,
    product_schema,
    products,
    sale_schema,
    sales,
    zipf_ranks,
)


def width_bytes(schema: pa.Schema) -> int:
    return sum(f.type.byte_width for f in schema)


def test_rows_have_the_papers_sizes() -> None:
    assert width_bytes(product_schema()) == 120
    assert width_bytes(sale_schema()) == 20
    assert products(10).schema.equals(product_schema())
    assert sales(10, products=5).schema.equals(sale_schema())


@pytest.mark.parametrize("shuffled", [True, False])
@pytest.mark.parametrize("rows", [0, 1, 999, 1000])
def test_every_product_occurs_once(rows: int, shuffled: bool) -> None:
    batches = list(products(rows, batch_rows=100, shuffled=shuffled))
    assert all(b.num_rows <= 100 for b in batches)
    ids = [i for b in batches for i in b.column("product_id").to_pylist()]
    assert sorted(ids) == list(range(rows))
    assert (ids == sorted(ids)) == (not shuffled or rows < 2)


def test_a_product_is_a_function_of_seed_and_id() -> None:
    by_id = products(500, seed=3, shuffled=False).read_all()
    shuffled = products(500, seed=3, batch_rows=7).read_all()
    assert shuffled.sort_by("product_id").equals(by_id)
    some = [17, 3, 17, 499]
    assert pa.Table.from_batches([product_rows(some, seed=3)]).equals(by_id.take(some))
    other = products(500, seed=4, shuffled=False).read_all()
    for column in ("price", "stock", "supplier_id", "info"):
        assert other.column(column) != by_id.column(column)


def test_product_values_lie_in_their_ranges() -> None:
    table = products(20_000).read_all()
    price = table.column("price").to_numpy()
    assert price.min() >= 1.0
    assert price.max() <= 1000.0
    np.testing.assert_array_equal(price, np.round(price, 2))
    assert pc.min(table.column("stock")).as_py() >= 0
    assert pc.max(table.column("stock")).as_py() < 10_000
    assert pc.max(table.column("supplier_id")).as_py() < 10_000
    info = table.column("info").to_pylist()
    assert len(set(info)) == 20_000
    values = np.frombuffer(b"".join(info), dtype=np.uint8)
    assert np.bincount(values, minlength=256).std() < 6 * np.sqrt(len(values) / 256)


def test_the_key_may_have_another_name() -> None:
    assert products(5, key_name="sku").schema.names[0] == "sku"
    with pytest.raises(OptionError):
        products(5, key_name="price")


@pytest.mark.parametrize("placement", ["random", "rank"])
@pytest.mark.parametrize("missing", [0.0, 0.25])
def test_any_slice_of_the_sales_can_be_made_alone(placement: Any, missing: float) -> None:
    options: dict[str, Any] = {"products": 300, "placement": placement, "missing": missing}
    whole = sales(1000, batch_rows=128, **options).read_all()
    assert whole.column("sale_id").to_pylist() == list(range(1000))
    for start, rows in [(0, 1), (1, 0), (377, 500), (999, 1)]:
        part = sales(rows, start=start, batch_rows=61, **options).read_all()
        assert part.equals(whole.slice(start, rows))


def test_placement_decides_where_the_hot_keys_are() -> None:
    n = 10_000
    by_rank = sales(50_000, products=n, placement="rank", seed=9).read_all()
    ids = by_rank.column("product_id").to_numpy()
    np.testing.assert_array_equal(ids, zipf_ranks(n, 1.0, 50_000, 9) - 1)
    scattered = sales(50_000, products=n, placement="random", seed=9).read_all()
    np.testing.assert_array_equal(scattered.column("product_id").to_numpy(), permute(ids, n, 9))
    assert by_rank.drop_columns(["product_id"]).equals(scattered.drop_columns(["product_id"]))


def test_a_share_of_the_sales_names_products_that_do_not_exist() -> None:
    n = 5000
    table = sales(100_000, products=n, missing=0.2).read_all()
    ids = table.column("product_id").to_numpy()
    assert np.mean(ids >= n) == pytest.approx(0.2, abs=0.01)
    assert ids.max() < 2 * n
    all_found = sales(100_000, products=n).read_all().column("product_id").to_numpy()
    assert all_found.max() < n
    np.testing.assert_array_equal(ids[ids < n], all_found[ids < n])
    assert sales(100, products=n, missing=1.0).read_all().column("product_id").to_numpy().min() >= n


def test_quantities_are_one_to_ten() -> None:
    quantity = sales(50_000, products=10).read_all().column("quantity").to_numpy()
    assert set(quantity.tolist()) == set(range(1, 11))


def test_arguments_are_checked() -> None:
    for wrong in (
        {"rows": -1},
        {"batch_rows": 0},
        {"products": 0},
        {"placement": "middle"},
        {"missing": 1.5},
        {"missing": float("nan")},
        {"start": -1},
    ):
        options: dict[str, Any] = {"rows": 10, "products": 10} | wrong
        with pytest.raises(OptionError):
            sales(**options)
    with pytest.raises(OptionError):
        products(-1)
    with pytest.raises(OptionError):
        products(10, batch_rows=0)
