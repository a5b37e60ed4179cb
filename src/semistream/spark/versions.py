"""Which version of the master a micro-batch sees: one, for all its tasks and for every replay.

The first task of a micro-batch that asks writes down the version that is current; the others, and
all tasks of a replay after a crash, find it there. The note is a small file in the master's
directory:

    pins/<id of the query>/<number of the micro-batch>      the version's number, as text

The id of a query is the same for all its runs from one checkpoint. A batch DataFrame has no
micro-batches: its version is the one that was current when `enrich` was called.

A note is needed until its micro-batch is committed. When a query ends, the driver removes those
that are not needed any more: all, if it did not end in the middle of a micro-batch. What a query
left that was killed and never started again goes after `ABANDONED_S`.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from semistream.core.errors import StoreError
from semistream.store.manifest import PINS, read_manifest

KEPT = 128
"""Micro-batches whose notes are kept: more than Spark keeps of its own log, 100."""

ABANDONED_S = 30 * 24 * 3600.0
"""Seconds after which the notes of a query that has written none since are removed."""

_TRIES = 5
"""The driver may remove a directory that is empty just when a task wants to write in it."""


def micro_batch() -> tuple[str, int] | None:
    """The query's id and the micro-batch's number, in a task of a stream; else None."""
    context = TaskContext.get()
    if context is None:
        return None
    query = context.getLocalProperty("sql.streaming.queryId")
    number = context.getLocalProperty("streaming.sql.batchId")
    return None if query is None or number is None else (query, int(number))


def query_run() -> str:
    """The id of the run of a query, in a task of a stream: another one after every start."""
    context = TaskContext.get()
    run = None if context is None else context.getLocalProperty("spark.jobGroup.id")
    return run or ""


def pinned_version(master: str, query: str, batch: int) -> int:
    """The version that this micro-batch sees, decided by whoever asks first."""
    directory = Path(master) / PINS / query
    note = directory / str(batch)
    try:
        with suppress(FileNotFoundError):
            return int(note.read_text())
        version = read_manifest(master).version
        for left in reversed(range(_TRIES)):
            try:
                version = _written(note, version)
                break
            except FileNotFoundError:
                if left == 0:
                    raise
        (directory / str(batch - KEPT)).unlink(missing_ok=True)
        return version
    except OSError as error:
        raise StoreError(
            f"the version for micro-batch {batch} cannot be written down in {str(directory)!r}: "
            f"{error.strerror}",
            hint="executors need to write in the master's directory pins/; check its permissions",
        ) from error


def _written(note: Path, version: int) -> int:
    """Write the note unless it is there; the version that it names."""
    beside = note.with_name(f".{note.name}-{secrets.token_hex(8)}")
    note.parent.mkdir(parents=True, exist_ok=True)
    beside.write_text(str(version))
    try:
        # Unlike a rename, a link fails where another task was first.
        os.link(beside, note)
    except FileExistsError:
        return int(note.read_text())
    finally:
        beside.unlink()
    return version


# ---------------------------------------------------------------------------------- at the driver


def forget(master: str, query: str, finished: int) -> None:
    """Remove the notes of a query's micro-batches up to one that is committed."""
    directory = Path(master) / PINS / query
    with suppress(OSError):
        for note in list(directory.iterdir()):
            if note.name.isdigit() and int(note.name) <= finished:
                note.unlink(missing_ok=True)
        directory.rmdir()  # fails where something is left


def forget_abandoned(master: str) -> None:
    """Remove the notes of queries that wrote none for `ABANDONED_S` seconds."""
    with suppress(OSError):
        found = list((Path(master) / PINS).iterdir())
        # The time of the file system, whose clock may be another machine's.
        with tempfile.NamedTemporaryFile(dir=Path(master) / PINS) as fresh:
            now_s = Path(fresh.name).stat().st_mtime
        for directory in found:
            # A directory's time is that of the last note written in it or removed.
            if directory.is_dir() and directory.stat().st_mtime < now_s - ABANDONED_S:
                shutil.rmtree(directory, ignore_errors=True)


class _Ends(StreamingQueryListener):
    """Removes notes of the queries of a session when they end."""

    def __init__(self) -> None:
        self.masters: set[str] = set()
        self._finished: dict[str, int] = {}

    def onQueryStarted(self, event: Any) -> None: ...

    def onQueryProgress(self, event: Any) -> None:
        progress = event.progress
        if "commitOffsets" in progress.durationMs:
            self._finished[str(progress.id)] = progress.batchId

    def onQueryIdle(self, event: Any) -> None: ...

    def onQueryTerminated(self, event: Any) -> None:
        finished = self._finished.pop(str(event.id), None)
        if finished is not None:
            for master in self.masters:
                forget(master, str(event.id), finished)


_listeners: WeakKeyDictionary[SparkSession, _Ends] = WeakKeyDictionary()


def tidy(session: SparkSession, master: str) -> None:
    """Keep the notes in this master few: of queries of this session that end, and of lost ones."""
    forget_abandoned(master)
    listener = _listeners.get(session)
    if listener is None:
        listener = _listeners[session] = _Ends()
        session.streams.addListener(listener)
    listener.masters.add(master)
