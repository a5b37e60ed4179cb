"""Databases whose tables are read as Arrow: how each is reached, and how its SQL is written.

A query whose connection is lost is asked again, a few times with growing pauses, before it is given
up. One that the database refuses fails at once.
"""

from __future__ import annotations

import re
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import date, datetime
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pyarrow as pa

from semistream.core.errors import OptionError, StoreError

PAUSES_S = (0.1, 0.5, 2.0, 5.0)
"""Pauses before a lost connection is tried again."""


KNOCK_S = 10.0
"""How long to wait for somebody to listen."""


def real_pause(seconds: float) -> None:
    """Wait; tests hand in something else."""
    threading.Event().wait(seconds)


class Database(ABC):
    """A database that answers queries with Arrow tables; connected when it is first asked."""

    package = ""
    extra = ""
    quote = '"'
    is_snapshot = True
    """Whether all queries see the tables as they were at the first one."""

    def __init__(
        self, uri: str, pauses_s: tuple[float, ...], pause: Callable[[float], None]
    ) -> None:
        self.uri = uri
        self._pauses_s = pauses_s
        self._pause = pause
        self._given_up: BaseException | None = None
        self._lock = threading.Lock()

    def table(self, query: str) -> pa.Table:
        """The result of a query; a lost connection is opened again before it is given up."""
        with self._lock:
            if self._given_up is not None:
                # Reads that were planned before fail at once.
                raise self._given_up
            return self._persistent(lambda: self._ask(query))

    def stream(self, query: str) -> pa.RecordBatchReader:
        """The result of a query, batch by batch; the connection is closed at its end."""
        reader = self._persistent(lambda: self._ask_for_batches(query))

        def batches() -> Iterator[pa.RecordBatch]:
            try:
                yield from reader
            except Exception as error:
                raise self._failed(error) from error
            finally:
                self.close()

        return pa.RecordBatchReader.from_batches(reader.schema.remove_metadata(), batches())

    def quoted(self, name: str) -> str:
        """A name as SQL has it."""
        return self.quote + name.replace(self.quote, self.quote * 2) + self.quote

    def literal(self, value: Any) -> str:
        """A key as SQL has it."""
        if isinstance(value, datetime):
            kind = "timestamptz" if value.tzinfo is not None else "timestamp"
            return f"{kind} '{value.isoformat(sep=' ')}'"
        if isinstance(value, date):
            return f"date '{value.isoformat()}'"
        return str(int(value))

    @abstractmethod
    def divided(self, number: str, by: int) -> str:
        """A whole number divided by one, without the rest."""

    @abstractmethod
    def whole(self, number: str) -> str:
        """A number as one of 64 bits."""

    @abstractmethod
    def close(self) -> None:
        """End the connection."""

    @abstractmethod
    def _ask(self, query: str) -> pa.Table:
        """The result of a query, or whatever the driver raises."""

    @abstractmethod
    def _ask_for_batches(self, query: str) -> pa.RecordBatchReader:
        """The result of a query as a reader, or whatever the driver raises."""

    @abstractmethod
    def _is_lost(self, error: BaseException) -> bool:
        """Whether an error says that the connection is gone, and not that the query is wrong."""

    def _persistent(self, ask: Callable[[], Any]) -> Any:
        for pause_s in (*self._pauses_s, None):
            try:
                return ask()
            except Exception as error:
                if isinstance(error, StoreError) or not self._is_lost(error):
                    raise self._failed(error) from error
                self.close()
                if pause_s is None:
                    self._given_up = self._failed(error)
                    raise self._given_up from error
                self._pause(pause_s)
        raise AssertionError("not reached")

    def _failed(self, error: BaseException) -> BaseException:
        if isinstance(error, StoreError):
            return error
        said = (str(error).splitlines() or [type(error).__name__])[0]
        if self._is_lost(error):
            tries = len(self._pauses_s) + 1
            return StoreError(
                f"the database does not answer, after {tries} tries: {said}",
                hint="nothing that was joined is lost; start again when it is back",
            )
        return StoreError(f"the database refused a query: {said}", hint="check the table's name")

    def _lacks_package(self) -> StoreError:
        return StoreError(
            f"tables at {self.uri.split(':', 1)[0]}:// need the package {self.package}",
            hint=f"pip install 'semistream[{self.extra}]'",
        )


class PostgreSQL(Database):
    """PostgreSQL through ADBC: one connection with one transaction, which sees one state."""

    package, extra = "adbc-driver-postgresql", "postgres"
    _open: Any = None
    _cursor: Any = None

    def divided(self, number: str, by: int) -> str:
        return f"({number}) / {by}"

    def whole(self, number: str) -> str:
        return f"({number})::bigint"

    def close(self) -> None:
        opened = [one for one in (self._cursor, self._open) if one is not None]
        self._open = self._cursor = None
        for one in opened:
            with suppress(Exception):
                one.close()

    def _ask(self, query: str) -> pa.Table:
        with self._connected().cursor() as cursor:
            cursor.execute(query)
            return cursor.fetch_arrow_table()

    def _ask_for_batches(self, query: str) -> pa.RecordBatchReader:
        self._cursor = self._connected().cursor()  # while it is there, its results are
        self._cursor.execute(query)
        return self._cursor.fetch_record_batch()

    def _is_lost(self, error: BaseException) -> bool:
        text = str(error).lower()
        signs = ("connect", "terminat", "server closed", "no connection", "socket", "shutting down")
        return any(sign in text for sign in signs)

    def _connected(self) -> Any:
        if self._open is None:
            try:
                import adbc_driver_postgresql.dbapi as driver
            except ImportError as error:
                raise self._lacks_package() from error
            self._open = driver.connect(self.uri)
            with self._open.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        return self._open


_REFUSED = re.compile(r"MySqlError \{ ERROR (\d+)")
_PASSING = {1040, 1053, 1152, 1184, 1203, 1317, 1927}
"""Errors of the server that say nothing of the query: it is full, stops, or ended a connection."""


class MariaDB(Database):
    """MariaDB, or MySQL, through ConnectorX, which connects for every query.

    So each query sees the table as it is then: there is no transaction around them. Where nobody
    listens, ConnectorX tries for half a minute by itself. That it does once; the tries after it
    look first whether somebody listens.
    """

    package, extra = "connectorx", "mariadb"
    quote = "`"
    is_snapshot = False

    def __init__(
        self, uri: str, pauses_s: tuple[float, ...], pause: Callable[[float], None]
    ) -> None:
        super().__init__(uri, pauses_s, pause)
        self._address = "mysql:" + uri.split(":", 1)[1]  # the only name that the driver knows
        self._doubtful = True

    def divided(self, number: str, by: int) -> str:
        return f"({number}) DIV {by}"

    def whole(self, number: str) -> str:
        return f"CAST({number} AS SIGNED)"

    def close(self) -> None:
        self._doubtful = True

    def _ask(self, query: str) -> pa.Table:
        return self._read(query, "arrow")

    def _ask_for_batches(self, query: str) -> pa.RecordBatchReader:
        return self._read(query, "arrow_stream")

    def _read(self, query: str, kind: str) -> Any:
        try:
            import connectorx
        except ImportError as error:
            raise self._lacks_package() from error
        if self._doubtful:
            self._knock()
        # The other protocol of the driver fails on large results.
        found = connectorx.read_sql(self._address, query, return_type=kind, protocol="binary")
        self._doubtful = False
        return found

    def _knock(self) -> None:
        """Raise an error of the system if nobody listens."""
        address = urlsplit(self._address)
        path = parse_qs(address.query).get("socket")
        if path:
            with socket.socket(socket.AF_UNIX) as one:
                one.connect(unquote(path[0]))
        else:
            host, port = address.hostname or "localhost", address.port or 3306
            socket.create_connection((host, port), KNOCK_S).close()

    def _is_lost(self, error: BaseException) -> bool:
        refused = _REFUSED.search(str(error))
        return refused is None or int(refused[1]) in _PASSING


_KINDS: dict[str, type[Database]] = {
    "postgresql": PostgreSQL,
    "postgres": PostgreSQL,
    "mariadb": MariaDB,
    "mysql": MariaDB,
}


def is_database(uri: str) -> bool:
    """Whether a text is the address of a database, and not a path."""
    return uri.split("://", 1)[0] in _KINDS and "://" in uri


def database(
    uri: str, pauses_s: tuple[float, ...] = (), pause: Callable[[float], None] = real_pause
) -> Database:
    """The database at an address."""
    if not is_database(uri):
        raise OptionError(
            f"{uri!r} is not the address of a PostgreSQL or MariaDB database",
            hint="write postgresql://user@host/database or mariadb://user@host/database",
        )
    return _KINDS[uri.split("://", 1)[0]](uri, pauses_s, pause)
