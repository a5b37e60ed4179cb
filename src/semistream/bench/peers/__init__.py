"""The systems that semistream is compared with, each on its own."""

from __future__ import annotations

from semistream.bench.peers.base import Peer, PeerError
from semistream.bench.peers.duckdb import DuckDb, DuckDbIndexed
from semistream.bench.peers.lmdb import Lmdb
from semistream.bench.peers.mariadb import MariaDb
from semistream.bench.peers.ours import Drained, Waiting
from semistream.bench.peers.postgres import Postgres
from semistream.bench.peers.rocksdb import RocksDb
from semistream.bench.peers.scans import Polars, PyArrow
from semistream.bench.peers.sqlite import Sqlite

PEERS: dict[str, type[Peer]] = {
    peer.name: peer
    for peer in (
        Drained,
        Waiting,
        DuckDb,
        DuckDbIndexed,
        Polars,
        PyArrow,
        RocksDb,
        Lmdb,
        Sqlite,
        Postgres,
        MariaDb,
    )
}
"""All systems by name; ours come first."""

OURS = (Drained.name, Waiting.name)

__all__ = ["OURS", "PEERS", "Peer", "PeerError"]
