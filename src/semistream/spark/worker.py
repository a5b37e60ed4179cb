"""What runs inside Spark's Python workers: an operator that outlives the task.

Spark reuses its Python workers, so a module's globals live on from micro-batch to micro-batch. The
operator, with its cache and what it learned about the stream, is kept in one. That is a best
effort: a worker may end at any time, and a new one begins with an empty cache. Between two tasks an
operator holds no rows, so that nothing is lost with it.
"""

from __future__ import annotations

import gc
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa

from semistream.core.clock import SystemClock
from semistream.core.durations import parse_milliseconds
from semistream.core.errors import StoreError
from semistream.core.stats import JoinStats
from semistream.joins.binding import On
from semistream.joins.operator import Operator
from semistream.joins.parallel import HAND
from semistream.joins.registry import make_join
from semistream.spark.versions import micro_batch, pinned_version
from semistream.store.file import FileMaster
from semistream.store.sql import Table, open_any

HAND_SHARE = 8
"""A task has this part of its memory for rows in hand: as they come, and put together."""

MARK = "\0matched"
"""The operator's last column, where the rule for rows without a partner needs it."""


@dataclass(frozen=True)
class Recipe:
    """Everything a task needs to know to join; made at the driver, sent to the workers.

    `name` tells the joins of one application apart. `memory_bytes` is the share of one operator
    and the rows in hand for it, `keep` the number of operators that a worker may hold. `version` is
    used outside of a stream.
    `missing` and `retry_for` are the rule for rows without a partner (`semistream.etl.unmatched`).
    """

    name: str
    master: str | Table
    on: On
    key_names: tuple[str, ...]
    how: str
    algorithm: str
    memory_bytes: int
    columns: tuple[str, ...] | None
    io: str
    options: dict[str, Any]
    stream_schema: pa.Schema
    output_schema: pa.Schema
    version: int
    keep: int = 1
    dead_letters: str | None = None
    missing: str = "null"
    retry_for: str | None = None

    @property
    def title(self) -> str:
        """What the master is called in reasons."""
        return self.master.name if isinstance(self.master, Table) else Path(self.master).name

    @property
    def hand_bytes(self) -> int:
        """Memory for rows in hand."""
        return self.memory_bytes - operator_bytes(self.memory_bytes)

    @property
    def retry_ms(self) -> int:
        """How long rows wait for their key to come."""
        assert self.retry_for is not None
        return parse_milliseconds(self.retry_for, what="retry_for")

    @property
    def marks(self) -> bool:
        """Whether the operator tells rows with a partner from those without."""
        return self.missing in ("dead", "retry")

    def current_version(self) -> int:
        """The version of the master for the task that asks.

        A table has none: the number of times that it might have been opened anew stands for it.
        """
        batch = micro_batch()
        if batch is not None and isinstance(self.master, Table):
            every_ms = max(parse_milliseconds(self.master.refresh, what="refresh"), 1)
            return _clock.now_ns() // 10**6 // every_ms
        if batch is None:
            return self.version
        assert isinstance(self.master, str)
        with on_this_host():
            return pinned_version(self.master, *batch)

    def open(self, version: int, shard: int | None = None) -> FileMaster:
        """A version of the master, or of one of its shards."""
        with on_this_host():
            return open_any(self.master, io=self.io, version=version, shard=shard)

    def make(self, version: int, shard: int | None = None) -> Operator:
        """The operator for the whole master, or for one of its shards."""
        options = {"mark": MARK, **self.options} if self.marks else self.options
        return make_join(
            self.algorithm,
            self.open(version, shard),
            on=self.on,
            schema=self.stream_schema,
            how=self.how,
            memory=operator_bytes(self.memory_bytes),
            columns=self.columns,
            **options,
        )


def operator_bytes(memory_bytes: int) -> int:
    """What the operator has of the memory of a task."""
    return memory_bytes - memory_bytes // HAND_SHARE


@contextmanager
def on_this_host() -> Iterator[None]:
    """Errors of the store in here say on which machine it was, and what every machine needs."""
    try:
        yield
    except StoreError as error:
        raise StoreError(
            f"a task on {socket.gethostname()} cannot use the master: {error.message}",
            hint="every executor must reach it; " + error.hint,
        ) from error


@dataclass
class Held:
    """An operator that a worker keeps; `busy` while a task uses it."""

    operator: Operator
    version: int
    hand_bytes: int
    busy: bool = False
    used_ns: int = 0

    def did_since(self, before: JoinStats) -> JoinStats:
        """What the operator did after `before`; its memory is counted with that in hand."""
        did, hand = self.operator.stats.since(before), self.hand_bytes
        return replace(
            did,
            bytes_by_component={**did.bytes_by_component, HAND: hand},
            bytes_in_use=did.bytes_in_use + hand,
            bytes_peak=did.bytes_peak + hand,
            bytes_limit=did.bytes_limit + hand,
        )

    def close(self) -> None:
        """Free its memory, files and connections."""
        self.operator.close()
        self.operator.master.close()


IDLE_NS = 60 * 10**9
"""Spark ends workers that had no task for a minute; operators in busy workers go likewise."""

_held: dict[tuple[str, int | None], Held] = {}
_clock = SystemClock()


@contextmanager
def borrowed(recipe: Recipe, shard: int | None = None) -> Iterator[Held]:
    """The worker's operator for this task: the one of the last task, or a new one.

    An operator that a task left in the middle of its work is thrown away with the rows in it.
    """
    key, version = (recipe.name, shard), recipe.current_version()
    held = _held.pop(key, None)
    if held is not None and held.busy:
        held.close()
        held = None
    if held is not None and held.version != version:
        # What it has cached of keys that did not change stays.
        old = held.operator.master
        held.operator.move_to(recipe.open(version, shard))
        old.close()
        held.version = version
    _make_room(recipe)
    if held is None:
        held = Held(recipe.make(version, shard), version, recipe.hand_bytes)
    settle()
    _held[key] = held
    held.busy = True
    yield held
    held.busy, held.used_ns = False, _clock.now_ns()


def _make_room(recipe: Recipe) -> None:
    """Close operators until one more may be kept: those of joins that are not used any more, and
    those of this join that were not used for longest."""
    old = _clock.now_ns() - IDLE_NS
    gone = [key for key, held in _held.items() if held.used_ns < old]
    mine = [key for key in _held if key[0] == recipe.name and key not in gone]
    for key in gone + mine[: max(len(mine) - recipe.keep + 1, 0)]:
        _held.pop(key).close()


FIRST_TASKS = 3
"""Tasks of a worker after which it has imported all that it needs."""

_tasks = count(1)


def settle() -> None:
    """In a worker's first tasks: set aside what the imported libraries have made. Spark collects
    garbage after every task, which takes long over all of that."""
    if next(_tasks) <= FIRST_TASKS:
        gc.collect()
        gc.freeze()


def worker_name() -> str:
    """A name for this process, unique in the cluster."""
    return f"{socket.gethostname()}/{os.getpid()}"
