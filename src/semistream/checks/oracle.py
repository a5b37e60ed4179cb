"""What a join must give, computed by DuckDB, and the comparison with what it gave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType

import duckdb
import pyarrow as pa

COMPARABLE = "\u2261key"
"""A column of the oracle's own, where key columns cannot be compared by SQL as they are."""

SHOWN = 5
"""Rows of a difference that an error shows."""


class Oracle:
    """A DuckDB database that holds expected results and compares others with them.

    Results are compared as multisets: the order of rows and their division into batches is the
    join's own affair.
    """

    def __init__(self) -> None:
        self._connection = duckdb.connect(":memory:", config={"threads": "1"})
        self._expected: dict[str, tuple[int, ...]] = {}

    def expect(
        self,
        name: str,
        stream: pa.Table,
        master: pa.Table,
        on: Mapping[str, str],
        how: str,
        columns: Sequence[str],
        comparable: tuple[pa.Array, pa.Array] | None = None,
    ) -> str:
        """Compute a join once and keep it as `name`.

        `on` maps stream columns to master columns, `columns` are the master's in the result.
        `comparable` replaces the keys in the comparison, row by row, where SQL would not compare
        them exactly: values beyond the other side's type, for example.
        """
        if name in self._expected:
            return name
        pairs = dict(on)
        selected = [f"s.{_quoted(column)}" for column in stream.column_names]
        taken = set(stream.column_names)
        for column in columns:
            alias = column
            while alias in taken:
                alias += "_master"
            taken.add(alias)
            selected.append(f"m.{_quoted(column)} AS {_quoted(alias)}")
        if comparable is not None:
            stream = stream.append_column(COMPARABLE, comparable[0])
            master = master.append_column(COMPARABLE, comparable[1])
            pairs = {COMPARABLE: COMPARABLE}
        equal = " AND ".join(f"s.{_quoted(a)} = m.{_quoted(b)}" for a, b in pairs.items())
        source = {
            "inner": f"s JOIN m ON {equal}",
            "left": f"s LEFT JOIN m ON {equal}",
            "semi": f"s WHERE EXISTS (SELECT 1 FROM m WHERE {equal})",
            "anti": f"s WHERE NOT EXISTS (SELECT 1 FROM m WHERE {equal})",
        }[how]
        self._connection.register("s", stream)
        self._connection.register("m", master)
        query = f"CREATE TABLE {_quoted(name)} AS SELECT {', '.join(selected)} FROM {source}"
        self._connection.execute(query)
        self._connection.unregister("s")
        self._connection.unregister("m")
        self._expected[name] = self._fingerprint(_quoted(name))
        return name

    def assert_equal(self, actual: pa.Table, expected: str, what: str) -> None:
        """Raise unless `actual` has exactly the rows that were expected under that name."""
        self._connection.register("actual", actual)
        try:
            if self._fingerprint("actual") == self._expected[expected]:
                return
            # Perhaps only the hashes differ, for example of two types: compare row by row.
            missing = self._difference(_quoted(expected), "actual")
            surplus = self._difference("actual", _quoted(expected))
        finally:
            self._connection.unregister("actual")
        if missing or surplus:
            raise AssertionError(
                f"{what}: {actual.num_rows} rows where {self._expected[expected][0]} were expected"
                f"\nmissing, for example: {missing}\nsurplus, for example: {surplus}"
            )

    def close(self) -> None:
        """Free the database."""
        self._connection.close()

    def __enter__(self) -> Oracle:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _fingerprint(self, table: str) -> tuple[int, ...]:
        """The number of rows and a sum over their hashes, which no order changes."""
        query = f"SELECT count(*), coalesce(sum(hash(t)::HUGEINT), 0) FROM {table} AS t"
        return tuple(int(number) for number in self._connection.execute(query).fetchall()[0])

    def _difference(self, one: str, other: str) -> list[tuple[object, ...]]:
        query = f"SELECT * FROM {one} EXCEPT ALL SELECT * FROM {other} LIMIT {SHOWN}"
        return self._connection.execute(query).fetchall()


def _quoted(name: str) -> str:
    escaped = name.replace('"', '""')
    return f'"{escaped}"'
