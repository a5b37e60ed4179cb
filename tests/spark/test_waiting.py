"""Which rows wait and which leave: decisions without Spark."""

from __future__ import annotations

from types import SimpleNamespace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from semistream.core.errors import SchemaError
from semistream.spark import waiting
from semistream.spark.waiting import Ledger, WaitingRoom, even_ids


def test_a_bucket_leaves_whole_when_one_row_must() -> None:
    ledger = Ledger("schema")
    ledger.add(3, 10, 100, deadline_ms=50)
    ledger.add(3, 1, 10, deadline_ms=90)
    ledger.add(5, 10, 100, deadline_ms=60)
    assert ledger.due(49, pages_per_bucket=100) == []
    assert ledger.due(50, pages_per_bucket=100) == [3]
    assert ledger.due(60, pages_per_bucket=100) == [3, 5]


def test_a_bucket_leaves_when_its_pages_are_worth_reading() -> None:
    ledger = Ledger("schema")
    ledger.add(1, 399, 4000, deadline_ms=1000)
    ledger.add(2, 400, 4000, deadline_ms=1000)
    assert ledger.due(0, pages_per_bucket=100) == [2]


def test_the_fullest_leave_when_too_much_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "MOST_BYTES", 1000)
    ledger = Ledger("schema")
    for bucket, rows in ((1, 30), (2, 60), (3, 50)):
        ledger.add(bucket, rows, 10 * rows, deadline_ms=1000)
    assert ledger.due(0, pages_per_bucket=10**6) == [2]


@given(
    st.lists(
        st.tuples(st.integers(0, 15), st.integers(1, 10**6), st.integers(1, 10**8)), max_size=20
    ),
    st.integers(0, 10**6),
)
def test_a_ledger_survives(segments: list[tuple[int, int, int]], deadline_ms: int) -> None:
    ledger = Ledger("schema", ends=True)
    for bucket, rows, size in segments:
        ledger.add(bucket, rows, size, deadline_ms)
    again = Ledger.from_json(ledger.to_json())
    assert again == ledger
    assert again.rows == sum(rows for _, rows, _ in segments)
    kept = sum(bucket.size_bytes for bucket in again.buckets.values())
    assert again.due(-1, 10**9) == sorted(again.buckets), "nothing waits in a run that ends"
    again.ends = False
    gone = sum(again.buckets[number].size_bytes for number in again.due(-1, 10**9))
    assert kept - gone <= waiting.MOST_BYTES


class Kept:
    """A state with one value."""

    def __init__(self, text: str) -> None:
        self.text = text

    def exists(self) -> bool:
        return True

    def get(self) -> tuple[str]:
        return (self.text,)


def test_rows_of_another_schema_in_the_checkpoint_are_refused() -> None:
    schema = pa.schema([("k", pa.int64())])
    room = WaitingRoom(SimpleNamespace(stream_schema=schema), None, 4000, 1000, 2)  # type: ignore[arg-type]
    old = Ledger("k: string\nv: int32")
    room.ledger = Kept(old.to_json())  # type: ignore[assignment]
    assert room._opened().schema == "k: int64", "nothing waits: the new schema is taken"
    old.add(0, 1, 10, deadline_ms=5)
    room.ledger = Kept(old.to_json())  # type: ignore[assignment]
    with pytest.raises(SchemaError, match="k: string, v: int32, and the stream now has k: int64"):
        room._opened()


def test_ids_spread_as_spark_hashes_them(spark: SparkSession) -> None:
    for partitions in (1, 2, 3, 8):
        ids = even_ids(partitions, partitions)
        rows = spark.createDataFrame([(number,) for number in ids], "id int")
        places = rows.select(f.pmod(f.hash("id"), f.lit(partitions))).collect()
        assert sorted(row[0] for row in places) == list(range(partitions))
