"""Rules for rows without a partner, and stars of several masters, against SQL."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import semistream as ss
from semistream.core.errors import OptionError
from semistream.etl import Dimension, Enricher, enrich, star
from semistream.etl.unmatched import MISSING, NULL_KEY
from semistream.testing import ManualClock

CUSTOMERS, PARTS, ORDERS = 500, 300, 4000


def customers(keys: np.ndarray[Any, Any]) -> pa.Table:
    nations = [None if key % 5 == 0 else int(key % 7) for key in keys]
    return pa.table({"customer": keys, "name": [f"c{k}" for k in keys], "nation": nations})


def orders(seed: int = 0) -> pa.Table:
    """With duplicates, nulls, and keys that the masters do not have."""
    random = np.random.default_rng(seed)
    customer = random.integers(0, CUSTOMERS * 5 // 4, ORDERS)
    return pa.table(
        {
            "order": np.arange(ORDERS),
            "customer": pa.array(customer, mask=random.random(ORDERS) < 0.05),
            "part": random.zipf(1.2, ORDERS) % (PARTS * 2),
        }
    )


@pytest.fixture(scope="module")
def masters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("star")
    ss.build_master(folder / "customers", customers(np.arange(CUSTOMERS)), "customer")
    # Several suppliers to a part.
    part = np.repeat(np.arange(PARTS), 2)
    parts = pa.table({"part": part, "supplier": np.arange(2 * PARTS)})
    ss.build_master(folder / "parts", parts, "part")
    nations = pa.table({"nation": [0, 1, 2, 3, 4], "country": list("abcde")})
    ss.build_master(folder / "nations", nations, "nation")
    return folder


def same(table: pa.Table, sql: str, **tables: pa.Table) -> bool:
    with duckdb.connect() as connection:
        for name, one in tables.items():
            connection.register(name, one)
        wanted = connection.sql(sql).fetchall()
    found = [tuple(row.values()) for row in table.to_pylist()]
    return Counter(found) == Counter(wanted)


class Letters(list[pa.RecordBatch]):
    """Dead letters, kept."""

    def __call__(self, rows: pa.RecordBatch) -> None:
        self.append(rows)

    def table(self) -> pa.Table:
        return pa.Table.from_batches(self)


@pytest.mark.parametrize("missing", MISSING)
def test_every_rule(missing: str, masters: Path) -> None:
    stream, letters = orders(), Letters()
    retry_for = "1 hour" if missing == "retry" else None
    joined = enrich(
        stream, masters / "customers", "customer", missing=missing, dead_letters=letters,
        memory="1MB", retry_for=retry_for,
    )  # fmt: skip
    result = joined.read_all()
    (counts,) = joined.counts
    known = customers(np.arange(CUSTOMERS))
    kind = "left" if missing == "null" else "inner"
    assert same(
        result,
        f"select o.*, c.name, c.nation from o {kind} join c on o.customer = c.customer",
        o=stream,
        c=known,
    )
    assert counts.rows_in == ORDERS == counts.matched + counts.unmatched + counts.dead
    assert counts.waiting == 0
    assert counts.rows_out == result.num_rows
    if missing in ("null", "drop"):
        assert not letters
        return
    assert same(
        letters.table().drop_columns(["reason"]),
        "select o.* from o anti join c on o.customer = c.customer",
        o=stream,
        c=known,
    )
    ended = " when the stream ended" if missing == "retry" else ""
    assert counts.reasons == {
        NULL_KEY: stream["customer"].null_count,
        f"no partner in customers{ended}": counts.dead - stream["customer"].null_count,
    }


def test_a_star(masters: Path) -> None:
    """Orders with customers, their countries (by what the customer gave) and suppliers: TPC-H."""
    stream, letters = orders(3), Letters()
    joined = star(
        [*stream.to_batches(max_chunksize=700)],
        [
            Dimension(masters / "customers", "customer", missing="dead"),
            Dimension(masters / "nations", "nation", options={"memory": "300kB"}),
            Dimension(masters / "parts", "part", missing="drop", options={"memory": "300kB"}),
        ],
        dead_letters=letters,
    )
    result = joined.read_all()
    known = customers(np.arange(CUSTOMERS))
    assert same(
        result,
        """select o.*, c.name, c.nation, n.country, p.supplier
        from o join c on o.customer = c.customer left join n on c.nation = n.nation
        join p on o.part = p.part""",
        o=stream,
        c=known,
        n=pa.table({"nation": [0, 1, 2, 3, 4], "country": list("abcde")}),
        p=pa.table({"part": np.repeat(np.arange(PARTS), 2), "supplier": np.arange(2 * PARTS)}),
    )
    first, second, third = joined.counts
    assert letters.table().column_names == [*stream.column_names, "reason"]
    assert first.rows_in == ORDERS == first.matched + first.dead
    assert second.rows_in == first.matched
    assert third.rows_in == second.rows_in == third.matched + third.unmatched
    assert third.rows_out == result.num_rows == 2 * third.matched


def late(path: Path, clock: ManualClock, letters: Letters) -> Enricher:
    schema = pa.schema({"number": pa.int64(), "customer": pa.int64()})
    return Enricher(
        schema, path, "customer", missing="retry", retry_for="10 seconds", dead_letters=letters,
        clock=clock, memory="1MB",
    )  # fmt: skip


def rows(numbers: list[int], keys: list[int | None]) -> pa.RecordBatch:
    return pa.record_batch({"number": pa.array(numbers), "customer": pa.array(keys, pa.int64())})


def numbers(batches: Iterator[pa.RecordBatch] | Letters) -> list[int]:
    return sorted(n for batch in batches for n in batch.column("number").to_pylist())


def test_late_dimensions(tmp_path: Path) -> None:
    """Rows wait without holding others up, are released once, or given up when time is over."""
    path, clock, letters = tmp_path / "m", ManualClock(), Letters()
    ss.build_master(path, customers(np.arange(10)), "customer", fill=0.8)
    one = late(path, clock, letters)
    assert numbers(one.push(rows([1, 2, 3, 4], [5, 100, 101, 102]))) == [1]
    assert (one.counts.waiting, one.counts.matched) == (3, 1)
    clock.advance(4.0)
    assert numbers(one.push(rows([5, 6], [100, 6]))) == [6]
    ss.apply_changes(path, customers(np.array([100])), op=None)
    assert numbers(one.tick()) == [2, 5]
    assert numbers(one.tick()) == []
    assert (one.counts.waiting, one.counts.released) == (2, 2)
    ss.apply_changes(path, customers(np.array([101, 7])), op=None)
    clock.advance(5.9)
    assert numbers(one.push(rows([7], [102]))) == [3]
    clock.advance(0.2)
    assert numbers(one.tick()) == []
    assert numbers(letters) == [4]
    assert letters[0].column("reason").to_pylist() == ["no partner in m within 10 seconds"]
    ss.apply_changes(path, customers(np.array([102])), op=None)
    assert numbers(one.tick()) == [7]
    counts = one.counts
    assert (counts.rows_in, counts.matched, counts.dead, counts.waiting) == (7, 6, 1, 0)
    one.close()


def test_a_key_that_comes_and_goes_again(tmp_path: Path) -> None:
    path, clock, letters = tmp_path / "m", ManualClock(), Letters()
    ss.build_master(path, customers(np.arange(10)), "customer")
    one = late(path, clock, letters)
    assert numbers(one.push(rows([1], [50]))) == []
    ss.apply_changes(path, customers(np.array([50])), op=None)
    ss.apply_changes(path, pa.table({"customer": [50], "op": ["delete"]}))
    assert numbers(one.tick()) == []
    assert one.counts.waiting == 1
    clock.advance(11)
    assert numbers(one.finish()) == []
    assert numbers(letters) == [1]
    one.close()


def test_more_rows_wait_than_fit(tmp_path: Path) -> None:
    path, letters = tmp_path / "m", Letters()
    ss.build_master(path, customers(np.arange(10)), "customer")
    one = late(path, ManualClock(), letters)
    for part in range(40):
        first = part * 1000
        assert numbers(one.push(rows(list(range(first, first + 1000)), [99] * 1000))) == []
    counts = one.counts
    assert counts.waiting * 24 <= 250_000
    assert counts.rows_in == 40_000 == counts.waiting + counts.dead
    assert numbers(letters) == list(range(counts.dead))
    assert "more rows wait than fit into 250.0 kB" in letters[0].column("reason")[0].as_py()
    one.close()


def test_what_does_not_go_together(masters: Path) -> None:
    for options, text in (
        ({"missing": "ignore"}, "not a rule"),
        ({"missing": "retry"}, "do not go together"),
        ({"missing": "drop", "retry_for": "1 s"}, "do not go together"),
        ({"missing": "retry", "retry_for": "soon"}, "retry_for"),
    ):
        with pytest.raises(OptionError, match=text):
            enrich(orders(), masters / "customers", "customer", **options)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="no dimension"):
        star(orders(), [])
    assert list(star([], [Dimension(masters / "parts", "part")])) == []
    with pytest.raises(OptionError, match="left joins"):
        ss.join(orders(), masters / "customers", on="customer", mark="x")
    with pytest.raises(OptionError, match="already"):
        ss.join(orders(), masters / "customers", on="customer", how="left", mark="order")
