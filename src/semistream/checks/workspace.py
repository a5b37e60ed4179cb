"""What checks work on: pairs of a stream and a master, built once and joined by many."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa

from semistream.checks.oracle import Oracle
from semistream.store.build import build_master
from semistream.store.file import FileMaster, open_master

SMALL_PAGE = 4096
"""Small pages, so that small masters have many."""


@dataclass(frozen=True, eq=False)
class Case:
    """A stream, a master, and how they are joined; `name` must tell it from all others.

    `on` maps stream columns to the master's key columns. `build` are options of `build_master`.
    `comparable` is for the oracle, see `Oracle.expect`.
    """

    name: str
    stream: pa.Table
    master: pa.Table
    on: Mapping[str, str]
    build: Mapping[str, Any] = field(default_factory=dict)
    comparable: tuple[pa.Array, pa.Array] | None = None
    master_name: str = ""

    @property
    def payload(self) -> list[str]:
        """The master's columns but for the key."""
        return [name for name in self.master.column_names if name not in self.on.values()]


@cache
def part(case: Case, rows: int) -> Case:
    """The same with the first rows of the stream only."""
    if case.stream.num_rows <= rows:
        return case
    name = f"{rows} rows of {case.name}"
    master = case.master_name or case.name
    stream = case.stream.slice(0, rows)
    keys = case.comparable
    if keys is not None:
        keys = (keys[0].slice(0, rows), keys[1])
    return Case(name, stream, case.master, case.on, case.build, keys, master)


class Workspace:
    """A directory with masters and a database with expected results, each made at first use.

    Without a directory it makes one of its own and removes it when closed; with one, several
    processes may share it. What is not `thorough` leaves out combinations that prove little more
    than others do.
    """

    def __init__(self, directory: Path | None = None, *, thorough: bool = True) -> None:
        self._own = directory is None
        self.directory = directory or Path(tempfile.mkdtemp(prefix="semistream-checks-"))
        self.thorough = thorough
        self.oracle = Oracle()
        self._masters: dict[str, tuple[Path, pa.Table]] = {}
        self._opened: dict[str, FileMaster] = {}

    def master(self, case: Case) -> Path:
        """The path of the case's master."""
        name = case.master_name or case.name
        if name not in self._masters:
            path = self.directory / name
            if not path.exists():
                self._build(path, case)
            self._masters[name] = path, case.master
        path, table = self._masters[name]
        assert table is case.master, f"two masters are called {name!r}"
        return path

    def opened(self, case: Case) -> FileMaster:
        """The case's master, opened once for all joins."""
        name = case.master_name or case.name
        path = self.master(case)
        if name not in self._opened:
            self._opened[name] = open_master(path)
        return self._opened[name]

    def _build(self, path: Path, case: Case) -> None:
        """Build beside, then rename: who comes second uses what the first has made."""
        beside = Path(tempfile.mkdtemp(prefix="building-", dir=self.directory)) / "master"
        options = {"page_size": SMALL_PAGE, **case.build}
        build_master(beside, case.master, list(case.on.values()), **options)
        with contextlib.suppress(OSError):
            beside.rename(path)
        shutil.rmtree(beside.parent)

    def assert_exact(
        self, actual: pa.Table, case: Case, how: str, what: str, columns: list[str] | None = None
    ) -> None:
        """Raise unless `actual` is the join of the case, as a multiset."""
        chosen = case.payload if columns is None else columns
        chosen = chosen if how in ("inner", "left") else []
        name = f"{case.name} {how} {','.join(chosen)}"
        expected = self.oracle.expect(
            name, case.stream, case.master, case.on, how, chosen, case.comparable
        )
        self.oracle.assert_equal(actual, expected, what)

    def close(self) -> None:
        """Free the database and remove a directory of our own."""
        self.oracle.close()
        for master in self._opened.values():
            master.close()
        self._opened.clear()
        if self._own:
            shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Workspace:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
