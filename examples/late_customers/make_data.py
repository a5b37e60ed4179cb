"""Writes orders and customers, some of whom come late, for the example beside it.

python examples/late_customers/make_data.py [--late]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

CITIES = ("Auckland", "Innsbruck", "Ioannina", "Multan")
KNOWN, LATE, NEVER = 200, 30, 10
"""Customers that are there, that come late, and that never come, by their ids in this order."""


def customers(keys: range) -> list[str]:
    """Customers as lines of CSV."""
    return [f"{key},customer {key},{CITIES[key % len(CITIES)]}" for key in keys]


def make(folder: Path, orders: int = 600, seed: int = 3) -> None:
    """Orders as JSON files, and the customers that are known; a folder for changes."""
    for name in ("orders", "changes"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    lines = ["customer_id,name,city", *customers(range(KNOWN))]
    (folder / "customers.csv").write_text("\n".join(lines) + "\n")
    random = np.random.default_rng(seed)
    for number in range(2):
        keys = random.integers(0, KNOWN + LATE + NEVER, orders // 2).tolist()
        send(folder, f"{number}.json", number * orders // 2, keys)


def send(folder: Path, name: str, first: int, keys: list[int]) -> None:
    """A file of orders, moved into place when it is whole."""
    rows = [
        {"order_id": first + place, "customer_id": key, "amount": (first + place) / 4}
        for place, key in enumerate(keys)
    ]
    beside = folder / f"{name}.new"
    beside.write_text("".join(json.dumps(row) + "\n" for row in rows))
    beside.rename(folder / "orders" / name)


def bring_late_ones(folder: Path) -> None:
    """The customers that come late, as changes."""
    late = [f"{line},insert" for line in customers(range(KNOWN, KNOWN + LATE))]
    beside = folder / "late.new"
    beside.write_text("\n".join(["customer_id,name,city,op", *late]) + "\n")
    beside.rename(folder / "changes" / "late.csv")


if __name__ == "__main__":
    here = Path(__file__).parent
    bring_late_ones(here) if "--late" in sys.argv else make(here)
