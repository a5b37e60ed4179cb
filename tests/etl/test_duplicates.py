"""Duplicates, against SQL over everything that was sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import semistream as ss
from semistream.core.errors import OptionError, SchemaError
from semistream.etl import duplicates, new_seen, similar


def events(rows: int = 3000) -> pa.Table:
    random = np.random.default_rng(5)
    return pa.table(
        {
            "number": np.arange(rows),
            "device": [None if d == 0 else f"d{d}" for d in random.zipf(1.3, rows) % 200],
            "moment": random.integers(0, 4000, rows),
            "value": random.normal(size=rows).round(3),
        }
    )


def query(sql: str, **tables: pa.Table) -> list[tuple[Any, ...]]:
    with duckdb.connect() as connection:
        for name, table in tables.items():
            connection.register(name, table)
        return connection.sql(sql).fetchall()


FLAGGED = """select *, device is not null
    and row_number() over (partition by device, moment % 40 order by number) > 1 from e"""


@pytest.mark.parametrize("keep", ["first", "flag"])
def test_by_key(keep: str, tmp_path: Path) -> None:
    path = tmp_path / "seen"
    new_seen(path, {"device": pa.string(), "minute": pa.int64()})
    stream = events()
    stream = stream.append_column("minute", pa.array(stream["moment"].to_numpy() % 40))
    on = ["device", "minute"]
    half = stream.num_rows // 2
    results = []
    for part in (stream.slice(0, half), stream.slice(half)):  # a restart between them
        batches = part.to_batches(max_chunksize=400)
        results += list(duplicates(batches, path, on, keep=keep, memory="2MB"))
    result = pa.Table.from_batches(results)
    wanted = query(FLAGGED.replace("select *,", "select number,"), e=stream)
    if keep == "first":
        winners = [number for number, flag in sorted(wanted) if not flag]
        assert result["number"].to_pylist() == winners
    else:
        found = zip(result["number"].to_pylist(), result["is_duplicate"].to_pylist(), strict=True)
        assert list(found) == sorted(wanted)


def test_by_a_condition(tmp_path: Path) -> None:
    """A reading of the same device within 3 seconds of an earlier one, with nearly its value."""
    path = tmp_path / "seen"
    stream = events(900)
    empty = stream.select(["moment", "device", "value"]).slice(0, 0)
    ss.build_master(path, empty, "moment", fill=0.8)
    condition = ss.band("moment", "moment", width=3) & ss.band("value", "value", width=0.5)
    results = list(
        similar(stream.to_batches(max_chunksize=200), path, condition, keep="flag", memory="4MB")
    )
    found = pa.Table.from_batches(results)
    wanted = query(
        """select number, exists (select 1 from e p where p.number < e.number
           and abs(p.moment - e.moment) <= 3 and abs(p.value - e.value) <= 0.5)
           from e order by number""",
        e=stream,
    )
    flags = zip(found["number"].to_pylist(), found["is_duplicate"].to_pylist(), strict=True)
    assert list(flags) == wanted
    assert 0 < sum(flag for _, flag in wanted) < 900


def test_what_does_not_fit(tmp_path: Path) -> None:
    ss.build_master(tmp_path / "m", pa.table({"device": ["a"]}), "device")
    with pytest.raises(SchemaError, match="new_seen"):
        list(duplicates(events(), tmp_path / "m", "device"))
    new_seen(tmp_path / "seen", {"device": pa.string()})
    with pytest.raises(OptionError, match="keep"):
        list(duplicates(events(), tmp_path / "seen", "device", keep="last"))
    with pytest.raises(OptionError, match="column of the stream"):
        list(duplicates(events(), tmp_path / "seen", "device", keep="flag", flag="value"))
    assert list(duplicates([], tmp_path / "seen", "device")) == []
