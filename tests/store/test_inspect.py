"""Pages decoded for people hold exactly the rows of the table that was stored."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from semistream.core.errors import OptionError
from semistream.store.build import build_master
from semistream.store.file import FileMaster, open_master
from semistream.store.inspect import page_heads, page_table

ROWS = 700


def strings(prefix: str) -> list[str | None]:
    return [None if i % 7 == 3 else f"{prefix}{i}" * (i % 5) for i in range(ROWS)]


def payload() -> dict[str, Any]:
    return {
        "text": pa.array(strings("ä")),
        "large": pa.array(strings("large"), pa.large_string()),
        "word": pa.array([["red", "blue", None][i % 3] for i in range(ROWS)]).dictionary_encode(),
        "flag": pa.array([[True, False, None][i % 3] for i in range(ROWS)]),
        "number": pa.array([None if i % 11 == 0 else i / 3 for i in range(ROWS)]),
        "money": pa.array([Decimal(i) / 100 for i in range(ROWS)], pa.decimal128(12, 2)),
        "day": pa.array([dt.date(2024, 1, 1) + dt.timedelta(i) for i in range(ROWS)]),
        "place": pa.array(
            [None if i % 5 == 0 else {"x": i, "name": f"p{i}"} for i in range(ROWS)],
            pa.struct([("x", pa.int32()), ("name", pa.string())]),
        ),
        "raw": pa.array([bytes([i % 256]) * 16 for i in range(ROWS)], pa.binary(16)),
        "nothing": pa.nulls(ROWS),
    }


def shuffled(count: int = ROWS) -> list[int]:
    return [int(i) for i in np.random.default_rng(5).permutation(count)]


KEYS: dict[str, Any] = {
    "int64": pa.array([i * 10**15 - 2**60 for i in shuffled()]),
    "int8 with repeats": pa.array([i % 100 - 50 for i in shuffled()], pa.int8()),
    "uint32": pa.array([2**32 - 1 - i for i in shuffled()], pa.uint32()),
    "uint64": pa.array([2**64 - 1 - i for i in shuffled()], pa.uint64()),
    "date32": pa.array([dt.date(1960, 1, 1) + dt.timedelta(i) for i in shuffled()]),
    "timestamp": pa.array([i * 10**9 for i in shuffled()], pa.timestamp("us", tz="UTC")),
    "string": pa.array([f"key {i}" for i in shuffled()]),
    "large_string": pa.array([f"key {i}" for i in shuffled()], pa.large_string()),
    "dictionary": pa.array([f"key {i % 40}" for i in shuffled()]).dictionary_encode(),
    "decimal": pa.array([Decimal(i) / 4 for i in shuffled()], pa.decimal128(20, 2)),
}


def sorted_rows(table: pa.Table) -> list[str]:
    return sorted(map(repr, table.to_pylist()))


def whole(master: FileMaster) -> pa.Table:
    return pa.concat_tables([page_table(master, number) for number in range(master.pages)])


@pytest.mark.parametrize("kind", KEYS)
def test_pages_hold_the_rows_that_were_stored(kind: str, tmp_path: Path) -> None:
    columns = payload()
    table = pa.table({"text": columns.pop("text"), "id": KEYS[kind], **columns})
    build_master(tmp_path / "m", table, key="id", page_size=4096)
    with open_master(tmp_path / "m") as master:
        assert master.pages > 3
        decoded = whole(master)
    assert decoded.schema.equals(table.schema)
    assert sorted_rows(decoded) == sorted_rows(table)


def test_a_key_of_two_columns_over_several_shards(tmp_path: Path) -> None:
    table = pa.table(
        {
            "value": pa.array(range(ROWS)),
            "source": pa.array([f"s{i % 3}" for i in range(ROWS)]),
            "id": pa.array(shuffled(), pa.int32()),
        }
    )
    build_master(tmp_path / "m", table, key=["source", "id"], page_size=4096, shards=3)
    with open_master(tmp_path / "m") as master:
        assert sorted_rows(whole(master)) == sorted_rows(table)
        heads = list(page_heads(master))
    assert {head.shard for head in heads} == {0, 1, 2}


def test_an_empty_master_has_no_page(tmp_path: Path) -> None:
    build_master(tmp_path / "m", pa.table({"id": pa.array([], pa.int64())}), key="id")
    with open_master(tmp_path / "m") as master:
        assert list(page_heads(master)) == []
        with pytest.raises(OptionError, match="no page 0"):
            page_table(master, 0)


@pytest.mark.parametrize("text", [False, True])
def test_heads_say_what_the_pages_hold(text: bool, tmp_path: Path) -> None:
    table = pa.table({"id": pa.array(shuffled()), "value": pa.array(range(ROWS))})
    if text:
        table = table.append_column("text", payload()["text"])
    build_master(tmp_path / "m", table, key="id", page_size=4096, fill=0.5)
    with open_master(tmp_path / "m") as master:
        heads = list(page_heads(master))
        for head in heads:
            ids = page_table(master, head.number)["id"].to_pylist()
            assert (head.rows, head.first_key64, head.last_key64) == (len(ids), ids[0], ids[-1])
            assert not head.damaged
        assert list(page_heads(master, 2, 3)) == heads[2:5]
        assert list(page_heads(master, len(heads) - 1, 9)) == heads[-1:]
    assert sum(head.rows for head in heads) == ROWS
    assert all(0.4 < head.fill <= 0.5 for head in heads[:-1])


def test_a_damaged_page_is_marked(tmp_path: Path) -> None:
    build_master(tmp_path / "m", pa.table({"id": pa.array(range(2000))}), key="id", page_size=4096)
    with open_master(tmp_path / "m") as master:
        file = tmp_path / "m" / master.manifest.shards[0].file
        content = bytearray(file.read_bytes())
        content[4096 + 100] ^= 1
        file.write_bytes(content)
        assert [head.damaged for head in page_heads(master, 0, 3)] == [False, True, False]
