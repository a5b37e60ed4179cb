"""Seeded, streaming generators of the papers' workloads."""

from semistream.workloads.arrivals import Arrivals
from semistream.workloads.bursty import bursty_counts
from semistream.workloads.permutation import permute, unpermute
from semistream.workloads.products import (
    Placement,
    product_rows,
    product_schema,
    products,
    products_of_k,
    repeated_products,
    sale_schema,
    sales,
)
from semistream.workloads.registry import (
    WORKLOADS,
    Workload,
    make_workload,
    workload_idea,
    workload_options,
)
from semistream.workloads.tpch import tpch_table
from semistream.workloads.weather import cloud_reports, stand_in_reports
from semistream.workloads.zipf import zipf_ranks

__all__ = [
    "WORKLOADS",
    "Arrivals",
    "Placement",
    "Workload",
    "bursty_counts",
    "cloud_reports",
    "make_workload",
    "permute",
    "product_rows",
    "product_schema",
    "products",
    "products_of_k",
    "repeated_products",
    "sale_schema",
    "sales",
    "stand_in_reports",
    "tpch_table",
    "unpermute",
    "workload_idea",
    "workload_options",
    "zipf_ranks",
]
