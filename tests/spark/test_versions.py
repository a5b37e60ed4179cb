"""One version of the master per micro-batch, also in a replay; newer ones without a restart."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PythonException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from semistream import build_master
from semistream.core.errors import StoreError
from semistream.spark import enrich, stats
from semistream.spark.packing import _packing_of
from semistream.spark.versions import (
    ABANDONED_S,
    KEPT,
    forget,
    forget_abandoned,
    pinned_version,
)
from semistream.store.file import open_master
from semistream.store.manifest import PINS
from tests.spark.streams import FileStream, publish, until

ROWS = 5000
STREAM = pa.table({"k": list(range(ROWS))})


def build(path: Path, text: str) -> Path:
    build_master(path, pa.table({"k": list(range(ROWS)), "v": [text] * ROWS}), "k")
    return path


def test_the_first_to_ask_decides(tmp_path: Path) -> None:
    path = build(tmp_path / "m", "old")
    assert pinned_version(str(path), "q", 0) == 1
    publish(path, build(tmp_path / "n", "new"))
    assert pinned_version(str(path), "q", 0) == 1
    assert pinned_version(str(path), "q", 1) == 2
    assert pinned_version(str(path), "other", 0) == 2
    assert pinned_version(str(path), "q", KEPT) == 2
    left = sorted(int(note.name) for note in (path / PINS / "q").iterdir())
    assert left == [1, KEPT], "old notes go"


def test_tasks_that_ask_at_once_agree(tmp_path: Path) -> None:
    path = build(tmp_path / "m", "old")
    other = build(tmp_path / "n", "new")
    answers: list[tuple[int, int]] = []

    def ask() -> None:
        answers.extend((batch, pinned_version(str(path), "q", batch)) for batch in range(50))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    publish(path, other)
    for thread in threads:
        thread.join()
    assert len(answers) == 200
    assert len(set(answers)) == 50


def test_notes_of_what_is_committed_go(tmp_path: Path) -> None:
    path = str(build(tmp_path / "m", "old"))
    for batch in (7, 8, 9):
        pinned_version(path, "q", batch)
    pinned_version(path, "other", 1)
    forget(path, "q", 8)
    assert [note.name for note in (tmp_path / "m" / PINS / "q").iterdir()] == ["9"]
    forget(path, "q", 9)
    assert [query.name for query in (tmp_path / "m" / PINS).iterdir()] == ["other"]
    forget(path, "q", 9)  # nothing there: nothing happens
    other = tmp_path / "m" / PINS / "other"
    written_s = other.stat().st_mtime
    os.utime(other, (written_s, written_s - ABANDONED_S + 600))
    forget_abandoned(path)
    assert (other / "1").exists()
    os.utime(other, (written_s, written_s - ABANDONED_S - 600))
    forget_abandoned(path)
    assert not other.exists()


def test_an_earlier_version_opens_until_it_is_removed(tmp_path: Path) -> None:
    path = build(tmp_path / "m", "old")
    publish(path, build(tmp_path / "n", "new"))
    with open_master(path, version=1) as old, open_master(path) as new:
        assert (old.manifest.version, new.manifest.version) == (1, 2)
    shutil.rmtree(path / "v1")
    with pytest.raises(StoreError, match="no version 1 any more"):
        open_master(path, version=1)


def test_a_stream_takes_up_a_new_version_and_a_replay_the_old_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = build(tmp_path / "m", "old")
    stream = FileStream(spark, tmp_path / "s", STREAM.schema)
    seen: list[tuple[int, set[str], int]] = []

    def keep(rows: DataFrame, batch: int) -> None:
        values = rows.toArrow()["v"]
        seen.append((batch, set(values.to_pylist()), len(values)))

    out = enrich(stream.frame(), path, "k", memory="4MB")
    writer = out.writeStream.option("checkpointLocation", str(tmp_path / "c"))
    writer = writer.foreachBatch(keep)
    stream.send(STREAM)
    query = writer.start()
    query.processAllAvailable()
    publish(path, build(tmp_path / "n", "new"))
    stream.send(STREAM)
    query.processAllAvailable()
    query.stop()
    assert stats(query).version == 2
    note = path / PINS / query.id / "1"
    until(lambda: not note.parent.exists())  # the query has ended between two micro-batches
    publish(path, build(tmp_path / "o", "newest"))
    # As after a crash before the second micro-batch was committed.
    note.parent.mkdir()
    note.write_text("2")
    (tmp_path / "c" / "commits" / "1").unlink(missing_ok=True)
    query = writer.start()
    query.processAllAvailable()
    query.stop()
    assert seen == [(0, {"old"}, ROWS), (1, {"new"}, ROWS), (1, {"new"}, ROWS)]


def test_a_master_that_is_deleted_during_the_run(spark: SparkSession, tmp_path: Path) -> None:
    path = build(tmp_path / "m", "old")
    stream = FileStream(spark, tmp_path / "s", STREAM.schema)
    out = enrich(stream.frame(), path, "k", memory="4MB")
    stream.send(STREAM)
    query = stream.start(out, "out", processingTime="0 seconds")
    query.processAllAvailable()
    shutil.rmtree(path)
    stream.send(STREAM)
    with pytest.raises(
        StreamingQueryException, match=r"a task on \S+ cannot use the master: there is no"
    ):
        query.processAllAvailable()
    assert not path.exists(), "a note must not bring back the directory"


def test_a_master_that_a_task_cannot_open(spark: SparkSession, tmp_path: Path) -> None:
    path = build(tmp_path / "m", "old")
    out = enrich(spark.createDataFrame(STREAM), path, "k", memory="4MB")
    (path / "v1" / "index").unlink()
    with pytest.raises(PythonException, match=r"cannot use the master.*every executor must reach"):
        out.collect()


def test_a_master_that_a_task_with_waiting_rows_cannot_open(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"a task on \S+ cannot use the master: there is no"):
        _packing_of(str(tmp_path / "gone"), 1, 4)


def test_a_master_in_which_no_note_can_be_written(tmp_path: Path) -> None:
    path = build(tmp_path / "m", "old")
    (path / PINS).write_text("a file")
    with pytest.raises(StoreError, match="micro-batch 3 cannot be written down"):
        pinned_version(str(path), "q", 3)
