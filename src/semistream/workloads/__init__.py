"""Seeded, streaming generators of the papers' workloads."""

from semistream.workloads.arrivals import Arrivals
from semistream.workloads.bursty import bursty_counts
from semistream.workloads.permutation import permute, unpermute
from semistream.workloads.products import (
    Placement,
    product_rows,
    product_schema,
    products,
    sale_schema,
    sales,
)
from semistream.workloads.zipf import zipf_ranks

__all__ = [
    "Arrivals",
    "Placement",
    "bursty_counts",
    "permute",
    "product_rows",
    "product_schema",
    "products",
    "sale_schema",
    "sales",
    "unpermute",
    "zipf_ranks",
]
