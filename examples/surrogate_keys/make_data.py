"""Writes sales of two shops, some delivered twice, for the example beside it.

python examples/surrogate_keys/make_data.py [sales] [folder]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

FILES = 3


def make(folder: Path, sales: int = 3000, seed: int = 1) -> None:
    """JSON files of sales: (shop, product) is what the shops call a product."""
    random = np.random.default_rng(seed)
    out = folder / "sales"
    out.mkdir(parents=True, exist_ok=True)
    shops = random.choice(["north", "south"], sales).tolist()
    products = (random.zipf(1.3, sales) % 200).tolist()
    rows = [
        {
            "sale": number,
            "shop": shop,
            "product": None if number % 40 == 0 else f"p{product}",
            "units": 1,
        }
        for number, (shop, product) in enumerate(zip(shops, products, strict=True))
    ]
    rows += [rows[number] for number in random.integers(0, sales, sales // 10)]
    for part in range(FILES):
        lines = [json.dumps(row) for row in rows[part::FILES]]
        (out / f"{part}.json").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    make(
        Path(sys.argv[2]) if len(sys.argv) > 2 else Path(__file__).parent,
        int(sys.argv[1]) if len(sys.argv) > 1 else 3000,
    )
