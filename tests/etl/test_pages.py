"""The examples of docs/etl.md and docs/changing-masters.md run, on tables made for them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import semistream as ss

DOCS = Path(__file__).parents[2] / "docs"


def examples(page: str) -> list[str]:
    """Blocks of Python that need no Spark."""
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    return [block for block in blocks if "semistream.spark" not in block]


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A folder with the masters that the pages name, and their streams."""
    monkeypatch.chdir(tmp_path)
    keys = np.arange(100)
    customers = pa.table(
        {"customer_id": keys, "name": [f"c{k}" for k in keys], "nation_id": keys % 5}
    )
    ss.build_master("customers.master", customers, "customer_id", fill=0.8)
    nations = pa.table({"nation_id": np.arange(4), "nation": list("abcd")})
    ss.build_master("nations.master", nations, "nation_id")
    ss.build_master(
        "parts.master", pa.table({"part_id": np.arange(50), "price": keys[:50]}), "part_id"
    )
    changes = customers.slice(0, 10).append_column("op", pa.array(["update", "delete"] * 5))
    pq.write_table(changes.append_column("lsn", pa.array(range(10))), "changes.parquet")
    return {
        "ss": ss,
        "letters": [],
        "orders": pa.table({"customer_id": np.arange(200), "part_id": np.arange(200) % 60}),
        "sales": pa.table({"source": ["A", "B"] * 50, "id": keys % 7, "units": keys}),
        "readings": pa.table({"device": ["x", "y"] * 50, "minute": keys % 10}),
        "tonight": customers.slice(20),
    }


@pytest.mark.parametrize("page", ["etl.md", "changing-masters.md"])
def test_examples(page: str, names: dict[str, Any]) -> None:
    blocks = examples(page)
    assert blocks
    results = []
    for block in blocks:
        exec(compile(block, page, "exec"), names)
        if "joined" in names:
            results.append(names.pop("joined").read_all())
    if page == "etl.md":
        retried, star = results
        assert retried.num_rows == 100
        assert star.num_rows == sum(1 for k in range(100) if k % 60 < 50)
        assert sum(batch.num_rows for batch in names["letters"]) == 200
        assert ss.open_master("products.master").rows == 14
        assert ss.open_master("seen.master").rows == 10
        assert ss.open_master("customers.master").rows == 80
        assert names["difference"].counts.deleted == 20
    else:
        assert names["done"].version == 2
        assert ss.open_master("customers.master").rows == 95
