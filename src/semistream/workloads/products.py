"""The papers' two tables: a master of 120-byte products and a stream of 20-byte sales.

Sizes follow the MESHJOIN paper and the HYBRIDJOIN thesis (120-byte master rows, 20-byte stream
rows, key unique in the master, Zipf-distributed in the stream). Both are made batch by batch, and
every value is a pure function of the seed and of the product or the position in the stream: any
part can be made again alone, and a join's output can be checked without storing its input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.core.errors import OptionError
from semistream.kernels.jit import kernel
from semistream.workloads.permutation import permute, random_word, stream_key, unit_float
from semistream.workloads.zipf import zipf_ranks

Placement = Literal["random", "rank", "moving"]

INTERVALS = 20
"""Parts of the ids through which the demand moves with `placement="moving"`."""

INTERVAL_SALES = 8
"""Sales per id of such a part before the demand moves on."""

INFO_BYTES = 88
"""Fills a product up to 120 bytes: four numbers of 8 bytes and this."""

SUPPLIERS = 10_000

_INFO_WORDS = INFO_BYTES // 8
_PRICE_STEPS = np.uint64(99_901)  # 1.00 to 1000.00 in cents
_STOCK_LEVELS = np.uint64(10_000)
_SUPPLIERS = np.uint64(SUPPLIERS)
_MAX_QUANTITY = np.uint64(10)
_ONE = np.uint64(1)
_TWO = np.uint64(2)


def product_schema(key_name: str = "product_id") -> pa.Schema:
    """Columns of the master: 120 bytes per row."""
    return pa.schema(
        [
            pa.field(key_name, pa.int64(), nullable=False),
            pa.field("price", pa.float64(), nullable=False),
            pa.field("stock", pa.int64(), nullable=False),
            pa.field("supplier_id", pa.int64(), nullable=False),
            pa.field("info", pa.binary(INFO_BYTES), nullable=False),
        ]
    )


def sale_schema() -> pa.Schema:
    """Columns of the stream: 20 bytes per row."""
    return pa.schema(
        [
            pa.field("product_id", pa.int64(), nullable=False),
            pa.field("quantity", pa.int32(), nullable=False),
            pa.field("sale_id", pa.int64(), nullable=False),
        ]
    )


def product_rows(
    product_ids: npt.ArrayLike,
    *,
    seed: int = 0,
    key_name: str = "product_id",
    numbers: npt.NDArray[np.int64] | None = None,
) -> pa.RecordBatch:
    """The master rows of the given products, in the order given (ids may repeat).

    The other columns follow from the id or, where rows of one id shall differ, from `numbers`.
    """
    ids = np.ascontiguousarray(product_ids, dtype=np.int64).reshape(-1)
    price = np.empty(len(ids), dtype=np.float64)
    stock = np.empty(len(ids), dtype=np.int64)
    supplier = np.empty(len(ids), dtype=np.int64)
    info = np.empty(len(ids) * _INFO_WORDS, dtype=np.uint64)
    told_by = ids if numbers is None else numbers
    _fill_products(told_by, price, stock, supplier, info, stream_key(seed, "products"))
    # Fixed byte order, so that the same seed gives the same bytes on every machine.
    info_bytes = pa.py_buffer(info.astype("<u8", copy=False))
    columns = [
        pa.array(ids),
        pa.array(price),
        pa.array(stock),
        pa.array(supplier),
        pa.FixedSizeBinaryArray.from_buffers(pa.binary(INFO_BYTES), len(ids), [None, info_bytes]),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=product_schema(key_name))


def products(
    rows: int,
    *,
    seed: int = 0,
    key_name: str = "product_id",
    batch_rows: int = 65_536,
    shuffled: bool = True,
) -> pa.RecordBatchReader:
    """A master of `rows` products with ids 0..rows-1, each once.

    `shuffled` puts them in a pseudo-random order that depends on the seed; otherwise they come
    by id. A product's other columns depend only on the seed and its id, see `product_rows`.
    """
    if key_name in ("price", "stock", "supplier_id", "info"):
        raise OptionError(f"the key cannot be called {key_name!r}: another column is")

    def made(begin: int, end: int) -> pa.RecordBatch:
        ids = np.arange(begin, end, dtype=np.int64)
        if shuffled:
            ids = permute(ids, rows, seed)
        return product_rows(ids, seed=seed, key_name=key_name)

    return _read(rows, batch_rows, product_schema(key_name), made)


def repeated_products(
    rows: int, *, ids: int, skew: float = 0.0, seed: int = 0, batch_rows: int = 65_536
) -> pa.RecordBatchReader:
    """A master of `rows` rows whose ids are drawn from [0, ids), Zipf-distributed by `skew`.

    Ids occur several times or not at all; with a skew, small ids are the frequent ones. Rows of
    one id differ in the other columns.
    """

    def made(begin: int, end: int) -> pa.RecordBatch:
        drawn = zipf_ranks(ids, skew, end - begin, seed, start=begin) - 1
        return product_rows(drawn, seed=seed, numbers=np.arange(begin, end, dtype=np.int64))

    return _read(rows, batch_rows, product_schema(), made)


def products_of_k(
    ids: int, k: int, *, seed: int = 0, batch_rows: int = 65_536
) -> pa.RecordBatchReader:
    """A master in which each id of [0, ids) occurs exactly `k` times, in a random order."""
    if ids < 1 or k < 1:
        raise OptionError(f"{ids} ids, each {k} times: both must be at least 1")

    def made(begin: int, end: int) -> pa.RecordBatch:
        numbers = permute(np.arange(begin, end, dtype=np.int64), ids * k, seed)
        return product_rows(numbers // k, seed=seed, numbers=numbers)

    return _read(ids * k, batch_rows, product_schema(), made)


def sales(
    rows: int,
    *,
    products: int,
    skew: float = 1.0,
    placement: Placement = "random",
    seed: int = 1,
    start: int = 0,
    batch_rows: int = 65_536,
    missing: float = 0.0,
) -> pa.RecordBatchReader:
    """Sales number start .. start + rows - 1 of the endless stream that `seed` names.

    A sale's product has a Zipf-distributed rank with exponent `skew`. With `placement="rank"`
    its id is rank - 1, so that products in demand have neighbouring ids; with `"random"` ranks
    are scattered over all ids. With `"moving"` (SSIJ's temporal locality) the ids are cut into
    `INTERVALS` parts, and only one of them is in demand, by rank, for `INTERVAL_SALES` sales per
    id of it; then the next. A share `missing` of the sales, independently of everything else,
    names a product that the master lacks: an id in [products, 2 * products).
    """
    if products < 1:
        raise OptionError(f"a master of {products} products has no keys", hint="products >= 1")
    if placement not in get_args(Placement):
        known = ", ".join(get_args(Placement))
        raise OptionError(f"there is no placement {placement!r}", hint=f"use one of {known}")
    if not 0.0 <= missing <= 1.0:
        raise OptionError(f"missing={missing} is not a share", hint="give a number from 0 to 1")
    if start < 0:
        raise OptionError(f"the stream has no position {start}", hint="start >= 0")
    zipf_ranks(products, skew, 0, seed)  # raises for a skew that makes no sense
    key = stream_key(seed, "sales")

    def made(begin: int, end: int) -> pa.RecordBatch:
        sale_id = np.arange(start + begin, start + end, dtype=np.int64)
        if placement == "moving":
            ids = _moving_ids(sale_id, products, skew, seed)
        else:
            ids = zipf_ranks(products, skew, end - begin, seed, start=start + begin) - 1
        if placement == "random":
            ids = permute(ids, products, seed)
        quantity = np.empty(end - begin, dtype=np.int32)
        _fill_sales(ids, quantity, np.int64(products), missing, key, np.uint64(start + begin))
        columns = [pa.array(ids), pa.array(quantity), pa.array(sale_id)]
        return pa.RecordBatch.from_arrays(columns, schema=sale_schema())

    return _read(rows, batch_rows, sale_schema(), made)


def _moving_ids(
    sale_id: npt.NDArray[np.int64], products: int, skew: float, seed: int
) -> npt.NDArray[np.int64]:
    size = max(products // INTERVALS, 1)
    ranks = zipf_ranks(size, skew, len(sale_id), seed, start=int(sale_id[0])) - 1
    part = sale_id // (INTERVAL_SALES * size) % INTERVALS
    moved: npt.NDArray[np.int64] = np.minimum(part * size + ranks, products - 1)
    return moved


def _read(
    rows: int, batch_rows: int, schema: pa.Schema, made: Callable[[int, int], pa.RecordBatch]
) -> pa.RecordBatchReader:
    """`rows` rows, made batch by batch; `made` is called with the positions of its rows."""
    if rows < 0 or batch_rows < 1:
        raise OptionError(f"rows={rows}, batch_rows={batch_rows}: at least 0 and 1 are needed")
    batches: Iterator[pa.RecordBatch] = (
        made(begin, min(begin + batch_rows, rows)) for begin in range(0, rows, batch_rows)
    )
    return pa.RecordBatchReader.from_batches(schema, batches)


@kernel
def _fill_products(ids: Any, price: Any, stock: Any, supplier: Any, info: Any, key: Any) -> None:
    for i in range(len(ids)):
        product = np.uint64(ids[i])
        steps = random_word(key, product, np.uint64(0)) % _PRICE_STEPS
        price[i] = (np.float64(steps) + 100.0) / 100.0
        stock[i] = np.int64(random_word(key, product, _ONE) % _STOCK_LEVELS)
        supplier[i] = np.int64(random_word(key, product, _TWO) % _SUPPLIERS)
        for word in range(_INFO_WORDS):
            info[i * _INFO_WORDS + word] = random_word(key, product, np.uint64(3 + word))


@kernel
def _fill_sales(ids: Any, quantity: Any, products: Any, missing: Any, key: Any, start: Any) -> None:
    # Replaces the given share of ids by ids outside the master; which ones depends only on the
    # position, so that the other sales are the same for every share.
    for i in range(len(ids)):
        position = start + np.uint64(i)
        quantity[i] = np.int32(random_word(key, position, np.uint64(0)) % _MAX_QUANTITY) + 1
        if unit_float(random_word(key, position, _ONE)) < missing:
            outside = random_word(key, position, _TWO) % np.uint64(products)
            ids[i] = products + np.int64(outside)
