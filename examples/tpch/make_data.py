"""Writes orders, customers and parts after TPC-H's tables, for the example beside it.

python examples/tpch/make_data.py [orders] [folder]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

FILES = 3
SEGMENTS = ("AUTOMOBILE", "BUILDING", "FURNITURE", "HOUSEHOLD", "MACHINERY")


def customers(keys: list[int], generation: int) -> pa.Table:
    """Customers, with another balance in every generation."""
    return pa.table(
        {
            "c_custkey": pa.array(keys, pa.int64()),
            "c_name": [f"Customer#{key:09d}" for key in keys],
            "c_mktsegment": [SEGMENTS[key % len(SEGMENTS)] for key in keys],
            "c_acctbal": [float(key % 1000 + generation) for key in keys],
        }
    )


def make(folder: Path, orders: int = 3000, seed: int = 2) -> None:
    """Orders as JSON; customers, their changes and parts as Parquet."""
    random = np.random.default_rng(seed)
    count, parts = max(orders // 10, 10), max(orders // 8, 10)
    for name in ("orders", "changes"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    pq.write_table(customers(list(range(count)), 0), folder / "customers.parquet")
    part = pa.table(
        {
            "p_partkey": np.arange(parts),
            "p_name": [f"part {key}" for key in range(parts)],
            "p_retailprice": np.arange(parts) / 4 + 900,
        }
    )
    pq.write_table(part, folder / "parts.parquet")
    changed = customers([*range(5), *range(count, count + 20)], 1)
    operations = pa.array(["delete"] + ["update"] * 4 + ["insert"] * 20)
    positions = pa.array(range(changed.num_rows), pa.int64())
    feed = changed.append_column("op", operations).append_column("position", positions)
    pq.write_table(feed, folder / "changes" / "0.parquet")
    keys = random.integers(0, count + 40, orders).tolist()
    bought = (random.zipf(1.2, orders) % (parts + 20)).tolist()
    rows = [
        {"o_orderkey": number, "o_custkey": None if number % 50 == 0 else key, "l_partkey": item}
        for number, (key, item) in enumerate(zip(keys, bought, strict=True))
    ]
    for number in range(FILES):
        lines = [json.dumps(row) for row in rows[number::FILES]]
        (folder / "orders" / f"{number}.json").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    make(
        Path(sys.argv[2]) if len(sys.argv) > 2 else Path(__file__).parent,
        int(sys.argv[1]) if len(sys.argv) > 1 else 3000,
    )
