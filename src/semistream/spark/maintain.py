"""`maintain`: a stream of changes keeps a master up to date."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from semistream.core.budget import type_of_size
from semistream.core.errors import OptionError
from semistream.store.apply import Applied, apply_changes
from semistream.store.manifest import read_manifest

logger = logging.getLogger("semistream.spark")


def maintain(
    master: str | Path,
    changes: DataFrame,
    *,
    checkpoint: str | Path,
    op: str | None = "op",
    order_by: str | None = None,
    inserts: str | None = None,
    bad: str = "raise",
    memory: type_of_size = "1GB",
    name: str | None = None,
    on_applied: Callable[[Applied], None] | None = None,
    **trigger: Any,
) -> StreamingQuery:
    """Start a query that applies a stream of changes to a master: a new version a micro-batch.

    `changes` has the master's columns and one that says insert, update or delete, as for
    `semistream.apply_changes`. The changes of a micro-batch are applied in the order of the column
    `order_by`, such as a log's position; without it in the order in which Spark hands them out,
    which is that of the source only where it has one partition. They go through the driver, within
    `memory`.

    `checkpoint` is the folder from which a restart goes on; every micro-batch is applied exactly
    once, because the master remembers the last one in the manifest that publishes it. `bad="skip"`
    leaves out, counts and logs changes with an unknown operation or a null key. `trigger` is that
    of `DataStreamWriter.trigger`: `processingTime="1 second"`, `availableNow=True`. `on_applied` is
    called with what became of every micro-batch.

    Streams that are enriched with this master take the new version with their next micro-batch.
    """
    path = Path(master).absolute()
    manifest = read_manifest(path)
    if not changes.isStreaming:
        raise OptionError(
            "the changes are no stream", hint="use semistream.apply_changes for a batch"
        )
    for column in (op, order_by, *manifest.key):
        if column is not None and column not in changes.columns:
            raise OptionError(
                f"the changes have no column {column!r}; they have {', '.join(changes.columns)}",
                hint="name the columns with op= and order_by=; the master's key must be there",
            )
    context = changes.sparkSession.sparkContext

    def apply(rows: DataFrame, batch: int) -> None:
        feed = context.getLocalProperty("sql.streaming.queryId") or name or "maintain"
        table = rows.toArrow()
        if order_by is not None:
            table = table.sort_by(order_by)
        done = apply_changes(
            path,
            table.replace_schema_metadata(None),
            op=op,
            inserts=inserts,
            bad=bad,
            memory=memory,
            feed=feed,
            batch=batch,
        )
        if done.changes.rejected:
            logger.warning("micro-batch %d of changes to %s: left out %s", batch, path,
                           done.changes.rejected)  # fmt: skip
        if on_applied is not None:
            on_applied(done)

    writer = changes.writeStream.foreachBatch(apply)
    writer = writer.option("checkpointLocation", str(checkpoint))
    if name is not None:
        writer = writer.queryName(name)
    return (writer.trigger(**trigger) if trigger else writer).start()
