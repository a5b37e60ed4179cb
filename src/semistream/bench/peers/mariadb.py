"""MariaDB: the distinct keys of a micro-batch as a temporary table, an index nested loop."""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import csv

from semistream.bench.peers.base import (
    KEY,
    RECORD,
    Lookup,
    batch_of,
    product_batches,
    records_of,
    write_out,
)
from semistream.testing.mariadb import (
    DATABASE,
    MariaDBMissingError,
    MariaDBServer,
    find_mariadb,
)

LEAST_BYTES = 6 << 20
"""Less it does not start with."""

_CSV = csv.WriteOptions(include_header=False, quoting_style="none")


class MariaDb(Lookup):
    """A server of its own. It reads keys from a file; records come back as Arrow data."""

    name = "mariadb"
    package = "connectorx"
    memory_is = "innodb_buffer_pool_size (at least 6 MB)"

    @classmethod
    def missing(cls) -> str | None:
        try:
            find_mariadb()
        except MariaDBMissingError as error:
            return str(error)
        if importlib.util.find_spec("mysql") is None:
            return f"{cls.name} needs mysql-connector-python: pip install 'semistream[peers]'"
        return super().missing()

    def build(self) -> None:
        if self.store.exists():
            return
        self.workdir.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=f"{self.store.name}-", dir=self.workdir))
        beside.rmdir()
        fast = {"innodb-buffer-pool-size": "512M", "innodb-log-file-size": "512M"}
        fast |= {"innodb-flush-log-at-trx-commit": "0", "innodb-doublewrite": "0"}
        try:
            with MariaDBServer(data=beside, settings=fast) as server:
                connection = _connect(server)
                cursor = connection.cursor()
                cursor.execute(
                    f"CREATE TABLE product ({KEY} BIGINT PRIMARY KEY, "
                    f"record BINARY({RECORD.itemsize}) NOT NULL) ENGINE=InnoDB"
                )
                for batch in product_batches(self.rows):
                    _load(
                        server, cursor, _hexed(batch), f"product ({KEY}, @h) SET record=UNHEX(@h)"
                    )
                cursor.execute("ANALYZE TABLE product")
                cursor.fetchall()
                connection.close()
            beside.rename(self.store)
            write_out(self.store)
        finally:
            shutil.rmtree(beside, ignore_errors=True)

    def open(self, memory_bytes: int, *, cold: bool) -> None:
        settings = {
            "innodb-buffer-pool-size": str(max(memory_bytes, LEAST_BYTES)),
            "innodb-buffer-pool-load-at-startup": "0",
            "innodb-buffer-pool-dump-at-shutdown": "0",
            "max-heap-table-size": "1G",
            "innodb-flush-method": "O_DIRECT" if cold else "fsync",
        }
        self._server = MariaDBServer(data=self.store, settings=settings).start()
        self._connection = _connect(self._server)
        self._cursor = self._connection.cursor()
        # Not temporary: such a table is seen by no other connection, and rows are read by another.
        self._cursor.execute(f"CREATE OR REPLACE TABLE wanted ({KEY} BIGINT) ENGINE=MEMORY")

    def look_up(self, keys: npt.NDArray[np.int64]) -> pa.RecordBatch:
        import connectorx

        self._cursor.execute("TRUNCATE wanted")
        _load(self._server, self._cursor, pa.record_batch([pa.array(keys)], names=[KEY]), "wanted")
        found = connectorx.read_sql(
            self._server.uri.replace("mariadb:", "mysql:"),
            f"SELECT STRAIGHT_JOIN record FROM wanted JOIN product USING ({KEY})",
            return_type="arrow",
            protocol="binary",
        )
        column = found.column("record").cast(pa.binary(RECORD.itemsize)).combine_chunks()
        return batch_of(np.frombuffer(column.buffers()[1], RECORD, len(column)))

    def close(self) -> None:
        self._connection.close()
        self._server.stop()


def _connect(server: MariaDBServer) -> Any:
    import mysql.connector

    return mysql.connector.connect(
        unix_socket=str(server.socket),
        user="root",
        database=DATABASE,
        collation="utf8mb4_general_ci",  # the connector's own choice is MySQL's only
        autocommit=True,
        use_pure=True,  # it only commands; rows come through connectorx
    )


def _load(server: MariaDBServer, cursor: Any, rows: pa.RecordBatch, into: str) -> None:
    """Have the server read rows from a file: the fastest way in."""
    path = server.folder / "rows.csv"
    csv.write_csv(rows, path, _CSV)
    path.chmod(0o644)
    table, _, columns = into.partition(" ")
    cursor.execute(
        f"LOAD DATA INFILE '{path}' INTO TABLE {table} FIELDS TERMINATED BY ',' {columns}"
    )


def _hexed(batch: pa.RecordBatch) -> pa.RecordBatch:
    digits = records_of(batch).tobytes().hex().encode()
    kind = pa.binary(2 * RECORD.itemsize)
    column = pa.Array.from_buffers(kind, batch.num_rows, [None, pa.py_buffer(digits)])
    text = column.cast(pa.binary()).cast(pa.string())
    return pa.record_batch([batch.column(KEY), text], names=[KEY, "record"])
