"""semistream itself: the default algorithm with default settings."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from semistream.bench.masters import master_path, product_master
from semistream.bench.oracle import JOINED
from semistream.bench.peers.base import KEY, Peer
from semistream.core.stats import JoinStats
from semistream.joins.registry import make_join
from semistream.workloads import sale_schema


class Drained(Peer):
    """All rows of a micro-batch come out before the next one is pushed."""

    name = "semistream-drained"
    memory_is = "everything the join holds"

    @property
    def store(self) -> Path:
        return master_path(self.workdir, self.rows, seed=0)

    def build(self) -> None:
        product_master(self.workdir, self.rows).close()

    def open(self, memory_bytes: int, *, cold: bool) -> None:
        # Direct reads are cold by themselves.
        io = "direct" if cold else "buffered"
        self._operator = make_join(
            "auto",
            self.store,
            on=KEY,
            schema=sale_schema(),
            memory=memory_bytes,
            io=io,
            threads=None,
        )

    @property
    def threads(self) -> int:
        """Those of the join that is open: as many as `ss.join` would use."""
        return int(self._operator.processors)

    @property
    def stats(self) -> JoinStats:
        """The join's counters."""
        return self._operator.stats

    def join(self, batch: pa.RecordBatch) -> pa.Table:
        return pa.Table.from_batches(list(self._operator.drained(batch)), schema=JOINED)

    def drop_cache(self) -> None:
        """Nothing to do: cold means direct reads."""

    def close(self) -> None:
        self._operator.close()


class Waiting(Drained):
    """Rows wait for pages that are worth a read; a micro-batch's results come with later ones."""

    name = "semistream-waiting"

    def join(self, batch: pa.RecordBatch) -> pa.Table:
        results = list(self._operator.pushed(batch))
        ready = self._operator.take()
        return pa.Table.from_batches([*results, *([ready] if ready else [])], schema=JOINED)

    def drain(self) -> pa.Table:
        return pa.Table.from_batches(list(self._operator.finish()), schema=JOINED)
