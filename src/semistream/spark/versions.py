"""Which version of the master a micro-batch sees: one, for all its tasks and for every replay.

The first task of a micro-batch that asks writes down the version that is current; the others, and
all tasks of a replay after a crash, find it there. The note is a small file in the master's
directory:

    pins/<id of the query>/<number of the micro-batch>      the version's number, as text

The id of a query is the same for all its runs from one checkpoint. A batch DataFrame has no
micro-batches: its version is the one that was current when `enrich` was called.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

from pyspark import TaskContext

from semistream.core.errors import StoreError
from semistream.store.manifest import PINS, read_manifest

KEPT = 128
"""Micro-batches whose notes are kept: more than Spark keeps of its own log, 100."""


def micro_batch() -> tuple[str, int] | None:
    """The query's id and the micro-batch's number, in a task of a stream; else None."""
    context = TaskContext.get()
    if context is None:
        return None
    query = context.getLocalProperty("sql.streaming.queryId")
    number = context.getLocalProperty("streaming.sql.batchId")
    return None if query is None or number is None else (query, int(number))


def pinned_version(master: str, query: str, batch: int) -> int:
    """The version that this micro-batch sees, decided by whoever asks first."""
    directory = Path(master) / PINS / query
    note = directory / str(batch)
    with suppress(FileNotFoundError):
        return int(note.read_text())
    version = read_manifest(master).version
    beside = directory / f".{batch}-{secrets.token_hex(8)}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        beside.write_text(str(version))
        try:
            # Unlike a rename, a link fails where another task was first.
            os.link(beside, note)
        except FileExistsError:
            version = int(note.read_text())
        finally:
            beside.unlink()
        (directory / str(batch - KEPT)).unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(
            f"the version for micro-batch {batch} cannot be written down in {str(directory)!r}: "
            f"{error.strerror}",
            hint="executors need to write in the master's directory pins/; check its permissions",
        ) from error
    return version
