"""What all sources share: the record of an opened one, its columns, and errors that name files."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa

from semistream.core.errors import OptionError, SourceError, unknown_name

READ_ERRORS = (pa.ArrowException, OSError, EOFError, zlib.error)
"""What the libraries that read files raise."""


@dataclass
class Progress:
    """What iterating a source finds out."""

    started: bool = False
    rejected_rows: int = 0


Opener: TypeAlias = Callable[[Progress], Iterator[pa.RecordBatch]]


@dataclass(frozen=True)
class Source:
    """An opened source: its schema is known, its rows are still to be read.

    `rows` is None where only reading everything would tell. `one_shot` sources (readers and
    iterators) can be read once.
    """

    schema: pa.Schema
    rows: int | None
    name: str
    one_shot: bool
    _opener: Opener = field(repr=False, compare=False)
    _progress: Progress = field(default_factory=Progress, repr=False, compare=False)

    @property
    def rejected_rows(self) -> int:
        """Bad rows left out by the latest `batches()`; final once that is exhausted."""
        return self._progress.rejected_rows

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows in order, as non-empty batches of `schema`.

        Files are opened when the first batch is asked for and closed at the end; an iterator that
        is dropped half-way closes them too.
        """
        if self.one_shot and self._progress.started:
            raise SourceError(
                f"{self.name} can be read only once and has been read",
                hint="pass a file, a Table or a list of batches to read it again",
            )
        self._progress.started = True
        self._progress.rejected_rows = 0
        return self._opener(self._progress)

    def describe(self) -> str:
        """One line for people: what it is, how many columns and, if known, rows."""
        rows = "rows not known" if self.rows is None else counted(self.rows, "row")
        return f"{self.name}: {counted(len(self.schema), 'column')}, {rows}"


def picked_columns(schema: pa.Schema, columns: Sequence[str] | None, name: str) -> pa.Schema:
    """The schema of the asked-for columns, in the order asked."""
    known = list(schema.names)
    twice = next((n for n in known if known.count(n) > 1), None)
    if twice is not None:
        raise SourceError(f"{name} has two columns {twice!r}", hint="rename one of them")
    if columns is None:
        if not known:
            raise SourceError(f"{name} has no columns", hint="a master needs at least its key")
        return schema.remove_metadata()
    if not columns or len(set(columns)) != len(columns):
        raise OptionError(
            f"columns={list(columns)!r} names {'one twice' if columns else 'none'}",
            hint="name each column once, at least one",
        )
    for column in columns:
        if column not in known:
            raise unknown_name(f"column in {name}:", column, known)
    return pa.schema([schema.field(column) for column in columns])


def agreed_columns(
    first: pa.Schema | None, first_name: str, other: pa.Schema, other_name: str
) -> pa.Schema:
    """The common schema; names and types must agree, a column is nullable if either one is.

    Without a first one it is the other.
    """
    if first is None:
        return other
    for position in range(max(len(first), len(other))):
        a = first.field(position) if position < len(first) else None
        b = other.field(position) if position < len(other) else None
        if a is None or b is None or a.name != b.name or not a.type.equals(b.type):
            raise SourceError(
                f"{first_name} and {other_name} have different columns: number {position + 1} is "
                f"{_shown(a)} in the first and {_shown(b)} in the second",
                hint="all parts of a master need the same columns; columns=[...] picks common ones",
            )
    fields = [a.with_nullable(a.nullable or b.nullable) for a, b in zip(first, other, strict=True)]
    return pa.schema(fields)


def _shown(one: pa.Field | None) -> str:
    return "missing" if one is None else f"{one.name!r} ({one.type})"


def shaped(batch: pa.RecordBatch, schema: pa.Schema, rows: int) -> Iterator[pa.RecordBatch]:
    """Pick and order the columns of a batch and cut it into pieces of at most `rows` rows."""
    arrays = [batch.column(name) for name in schema.names]
    shaped = pa.RecordBatch.from_arrays(arrays, schema=schema)
    for begin in range(0, shaped.num_rows, rows):
        yield shaped.slice(begin, rows)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Errors of the libraries that read a file name the file."""
    try:
        yield
    except READ_ERRORS as error:
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        raise SourceError(
            f"{str(path)!r} cannot be read: {first_line}",
            hint="is the file whole, and of the kind that its suffix says?",
        ) from error


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
