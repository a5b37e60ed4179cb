"""Changes to a master, against a dictionary that is changed alike."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import semistream as ss
from semistream.core.errors import ChangeError, OptionError, SchemaError, StoreError
from semistream.store import apply
from semistream.store.apply import apply_changes, compact_master
from semistream.store.changes import OPERATIONS
from semistream.store.inspect import master_rows
from semistream.store.manifest import PINS, read_manifest

ROWS = 1500
Content = Counter[tuple[Any, ...]]

CASES: dict[str, dict[str, Any]] = {
    "numbers": {"build": {"fill": 0.8}},
    "shards": {"build": {"shards": 3, "fill": 0.8}},
    "texts": {"texts": True, "build": {"shards": 2}},
    "collisions": {"texts": True, "build": {"hash_bits": 4}},
    "frequency": {"build": {"frequency": "value", "shards": 2, "fill": 0.7}},
    "many": {"many": True, "build": {"shards": 2, "fill": 0.8}},
    "many collisions": {"many": True, "texts": True, "build": {"hash_bits": 4}},
}


def content(path: Path, version: int | None = None) -> Content:
    with ss.open_master(path, version=version) as master:
        assert all(bad is None for _, bad in master.bad_pages())
        tables = [pa.Table.from_batches([batch]) for batch in master_rows(master)]
        rows = Counter(
            row for table in tables for row in zip(*table.to_pydict().values(), strict=True)
        )
        assert master.rows == master.manifest.rows == rows.total()
        return rows


def table(keys: np.ndarray[Any, Any], seed: int, *, texts: bool = False) -> pa.Table:
    random = np.random.default_rng(seed)
    names = [None if n % 7 == 0 else "n" * int(n) for n in random.integers(0, 90, len(keys))]
    ids = pa.array([f"key {key}" for key in keys]) if texts else pa.array(keys)
    return pa.table({"id": ids, "value": random.integers(0, 1000, len(keys)), "name": names})


def feed(seed: int, count: int, *, texts: bool = False) -> pa.Table:
    random = np.random.default_rng(seed)
    keys = random.integers(-300, 2 * ROWS + 300, count)
    changes = table(keys, seed + 1, texts=texts)
    operations = random.choice(["insert", "update", "delete"], count).tolist()
    return changes.append_column("op", pa.array(operations))


def applied(rows: Content, changes: pa.Table, *, adds: bool) -> Content:
    """What the changes make of the rows, one after the other."""
    by_key: dict[Any, Content] = {}
    for row, count in rows.items():
        by_key.setdefault(row[0], Counter())[row] = count
    for change in changes.to_pylist():
        operation = change.pop("op")
        row = tuple(change.values())
        if operation != "insert" or not adds:
            by_key.pop(row[0], None)
        if operation != "delete":
            by_key.setdefault(row[0], Counter())[row] += 1
    merged: Content = Counter()
    for some in by_key.values():
        merged.update(some)
    return merged


def built(path: Path, *, texts: bool = False, many: bool = False, **build: Any) -> Path:
    keys = np.arange(ROWS) * 2
    if many:
        keys = np.sort(np.concatenate([keys[:500], np.repeat(keys[100:130:3], 150)]))
    ss.build_master(path, table(keys, 7, texts=texts), "id", **build)
    return path


@pytest.mark.parametrize("case", CASES)
def test_random_changes(case: str, tmp_path: Path) -> None:
    many, texts = CASES[case].get("many", False), CASES[case].get("texts", False)
    path = built(tmp_path / "m", texts=texts, many=many, **CASES[case]["build"])
    rows = content(path)
    stream = pa.table({"id": table(np.arange(-400, 2 * ROWS + 400), 1, texts=texts)["id"]})
    for version in range(5):
        changes = feed(100 * version, (1, 40, 500, 2500, 60)[version], texts=texts)
        done = apply_changes(path, changes, inserts="add" if many else "replace", compaction=False)
        rows = applied(rows, changes, adds=many)
        assert done.version == version + 2
        assert content(path) == rows
        keys = len({row[0] for row in rows})
        with ss.open_master(path) as master:
            assert master.manifest.keys == keys or master.manifest.hash_bits < 64
            joined = ss.join(stream, master, on="id", memory="4MB").read_all()
        assert Counter(zip(*joined.to_pydict().values(), strict=True)) == rows
    compact_master(path)
    assert content(path) == rows
    assert not read_manifest(path).is_placed


def test_all_rows_go_and_come_again(tmp_path: Path) -> None:
    path = built(tmp_path / "m", shards=2)
    gone = pa.table({"id": np.arange(ROWS) * 2, "op": ["delete"] * ROWS})
    assert apply_changes(path, gone).rows == 0
    assert content(path) == Counter()
    assert ss.join(gone, path, on="id", how="left").read_all()["value"].null_count == ROWS
    back = table(np.arange(ROWS) * 2, 7)
    apply_changes(path, back, op=None)
    assert content(path) == Counter(tuple(row.values()) for row in back.to_pylist())


def test_a_feed_of_other_names(tmp_path: Path) -> None:
    path = tmp_path / "m"
    ss.build_master(path, table(np.arange(10), 7), "id")
    rows = content(path)
    for code, names in OPERATIONS.items():
        for name in names:
            changes = table(np.array([2 * code]), code).append_column(
                "op", pa.array([name.upper()])
            )
            done = apply_changes(path, changes)
            if code < 3:
                simple = changes.set_column(
                    3, "op", pa.array([("insert", "update", "delete")[code]])
                )
                rows = applied(rows, simple, adds=False)
            else:
                assert done.changes.before_images == 1
        assert content(path) == rows


def test_room_in_pages_is_used(tmp_path: Path) -> None:
    """With a fill factor below one inserts stay on their page, as SSIJ has it; else it is split."""
    new = table(np.arange(ROWS // 10) * 20 + 1, 3)
    pages = {}
    for fill in (0.7, 1.0):
        path = built(tmp_path / f"{fill}", fill=fill)
        before = read_manifest(path).pages
        done = apply_changes(path, new, op=None, compaction=False)
        pages[fill] = (before, done.pages)
    assert pages[0.7][1] == pages[0.7][0]
    assert pages[1.0][1] > 1.5 * pages[1.0][0]


def test_only_touched_pages_are_written(tmp_path: Path) -> None:
    path = built(tmp_path / "m", fill=0.8)
    done = apply_changes(path, table(np.array([0, 2, 2000]), 1), op=None)
    assert (done.keys_touched, done.pages_written) == (3, 2)
    with ss.open_master(path) as master:
        assert master.touched_since(1) is not None
        assert master.touched_since(1).tolist() == [0, 2, 2000]  # type: ignore[union-attr]


def test_a_reader_keeps_its_version(tmp_path: Path) -> None:
    path = built(tmp_path / "m")
    old = content(path)
    stream = table(np.arange(ROWS) * 2, 7).select(["id"])
    with ss.open_master(path) as master:
        for _ in range(3):
            gone = pa.table({"id": np.arange(ROWS) * 2, "op": ["delete"] * ROWS})
            apply_changes(path, gone, keep=0)
            compact_master(path, keep=0)
        joined = ss.join(stream, master, on="id").read_all()
    assert Counter(tuple(row.values()) for row in joined.to_pylist()) == old
    assert content(path) == Counter()
    assert not (path / "v1").exists()


def test_versions_stay_that_are_asked_for(tmp_path: Path) -> None:
    path = built(tmp_path / "m")
    old = content(path)
    pin = path / PINS / "query"
    pin.mkdir(parents=True)
    for batch, version in ((7, 1), (8, 1), (9, 1), (10, 2)):
        (pin / str(batch)).write_text(str(version))
    for number in range(4):
        apply_changes(path, table(np.array([number]), number), op=None, keep=0)
    compact_master(path, keep=0)
    assert content(path, 1) == old
    assert read_manifest(path, 2).version == 2
    with pytest.raises(StoreError, match="no version 3 any more"):
        ss.open_master(path, version=3)
    for note in pin.iterdir():
        note.unlink()
    compact_master(path, keep=0)
    assert [one.name for one in path.glob("v*")] == ["v7"]


def test_compaction_comes_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apply, "LEAST_DEAD_BYTES", 0)
    path = built(tmp_path / "m", fill=0.9)
    everything = table(np.arange(ROWS) * 2, 9)
    assert [apply_changes(path, everything, op=None).compacted for _ in range(3)] == [
        False,
        True,
        False,
    ]
    assert content(path) == Counter(tuple(row.values()) for row in everything.to_pylist())


def test_numbers_of_changes(tmp_path: Path) -> None:
    path = built(tmp_path / "m")
    changes = feed(3, 10).append_column("lsn", pa.array([1, 1, 2, 3, 4, 5, 5, 8, 9, 20]))
    apply_changes(path, changes.slice(0, 6), sequence="lsn")
    assert read_manifest(path).sequence == 5
    again = apply_changes(path, changes.slice(0, 6), sequence="lsn")
    assert (again.version, again.changes.applied_before) == (2, 6)
    rest = apply_changes(path, changes.slice(2), sequence="lsn")
    assert (rest.version, rest.changes.applied_before) == (3, 5)
    with pytest.raises(ChangeError, match=r"row 1 of the feed has the number 2.*after 9.*sort"):
        apply_changes(path, changes.take([8, 2]), sequence="lsn")
    with pytest.raises(ChangeError, match="not of whole numbers"):
        apply_changes(path, changes, sequence="name")


def test_counted_batches_are_applied_once(tmp_path: Path) -> None:
    path = built(tmp_path / "m", many=True)
    one = table(np.array([2]), 1).append_column("op", pa.array(["insert"]))
    for batch in (0, 0, 1, 0, 1):
        apply_changes(path, one, feed="f", batch=batch)
    (row,) = (tuple(row.values()) for row in one.select(["id", "value", "name"]).to_pylist())
    assert content(path)[row] == 2
    assert apply_changes(path, one.slice(0, 0), feed="f", batch=2).rows == content(path).total()
    assert read_manifest(path).feeds == {"f": 2}


def test_bad_changes(tmp_path: Path) -> None:
    path = built(tmp_path / "m")
    good = feed(1, 4)
    odd = good.set_column(3, "op", pa.array(["insert", "truncate", None, "delete"]))
    with pytest.raises(ChangeError, match=r"row 1 of the feed has the operation 'truncate'.*known"):
        apply_changes(path, odd)
    keyless = good.set_column(0, "id", pa.array([1, 2, None, 4]))
    with pytest.raises(ChangeError, match="row 2 of the feed has a null in the key"):
        apply_changes(path, keyless)
    assert read_manifest(path).version == 1
    done = apply_changes(path, odd, bad="skip")
    assert done.changes.rejected == {"unknown operation": 2}
    done = apply_changes(path, keyless, bad="skip")
    assert done.changes.rejected == {"null in the key": 1}
    for wrong, error, text in (
        (good.drop_columns(["op"]), ChangeError, "no column 'op'"),
        (good.drop_columns(["id"]), ChangeError, "master's key"),
        (good.drop_columns(["value"]), ChangeError, "no column 'value'"),
        (good.set_column(3, "op", pa.array([1, 2, 3, 4])), ChangeError, "not of text"),
        (good.set_column(1, "value", pa.array(list("abcd"))), SchemaError, "does not fit"),
        (table(np.array([1]), 1).set_column(2, "name", pa.array(["x" * 9000])), StoreError, "page"),
    ):
        with pytest.raises(error, match=text):
            apply_changes(path, wrong, op="op" if wrong.num_rows > 1 else None)
    with pytest.raises(StoreError, match=r"more than 10 B of memory"):
        apply_changes(path, good, memory=10)
    for options in ({"inserts": "x"}, {"bad": "x"}, {"feed": "x"}):
        with pytest.raises(OptionError):
            apply_changes(path, good, **options)  # type: ignore[arg-type]
    with pytest.raises(StoreError, match="no master"):
        apply_changes(tmp_path / "none", good)
    assert not (tmp_path / "none").exists()


def test_a_damaged_page_is_not_written_on(tmp_path: Path) -> None:
    path = built(tmp_path / "m")
    file = path / "v1" / "shard-0000.pages"
    data = bytearray(file.read_bytes())
    data[100] ^= 1
    file.write_bytes(data)
    with pytest.raises(StoreError, match=r"page 0 of .* is damaged"):
        apply_changes(path, table(np.array([0]), 1), op=None)
    assert read_manifest(path).version == 1
