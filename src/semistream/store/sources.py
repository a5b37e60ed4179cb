"""What a master can be built from: files, Arrow data in memory, and streams of batches.

`open_source` finds the schema without reading the data; `Source.batches` then streams it, in the
order of the files, with memory that does not grow with their size.

CSV text is read by a parser of this module, because none at hand keeps the two promises a master
needs: no value is changed in silence (an integer column must not read 1.5 as 2), and every line of
a file ends up either in a row or among the rejected ones with its true line number.
"""

from __future__ import annotations

import csv
import difflib
import glob
import gzip
import os
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from io import BufferedIOBase
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.ipc
import pyarrow.parquet as pq

from semistream.core.errors import BadRowError, OptionError, SourceError, unknown_name
from semistream.kernels.jit import kernel

SourceLike: TypeAlias = (
    str
    | os.PathLike[str]
    | Iterable[str | os.PathLike[str]]
    | Iterable[pa.RecordBatch]
    | pa.Table
    | pa.RecordBatch
    | pa.RecordBatchReader
    | pads.Dataset
)
"""See `open_source` for what each of them means."""

CSV_SAMPLE_ROWS = 20_480
"""Rows at the start of a CSV source that decide the types of its columns."""

MAX_CSV_RECORD_BYTES = 1 << 20
"""A longer CSV row is rejected; so is a quote that does not close within this distance."""

_KINDS = {
    ".parquet": "Parquet",
    ".csv": "CSV",
    ".csv.gz": "CSV",
    ".arrow": "Arrow IPC",
    ".feather": "Arrow IPC",
    ".ipc": "Arrow IPC",
}
_KNOWN = ", ".join(_KINDS)
_ACCEPTED = (
    "a path, a folder, a glob pattern, a list of paths, a pyarrow Table, RecordBatch, "
    "RecordBatchReader or Dataset, or an iterable of record batches"
)
_READ_ERRORS = (pa.ArrowException, OSError, EOFError, zlib.error)
# Parquet column chunks are read through a buffer of this size instead of whole, which keeps memory
# small for row groups of any size.
_PARQUET_BUFFER_BYTES = 1 << 20


@dataclass
class _Progress:
    """What iterating a source finds out."""

    started: bool = False
    rejected_rows: int = 0


_Opener: TypeAlias = Callable[[_Progress], Iterator[pa.RecordBatch]]


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
    _opener: _Opener = field(repr=False, compare=False)
    _progress: _Progress = field(default_factory=_Progress, repr=False, compare=False)

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
        rows = "rows not known" if self.rows is None else _counted(self.rows, "row")
        return f"{self.name}: {_counted(len(self.schema), 'column')}, {rows}"


def open_source(
    source: SourceLike,
    *,
    columns: Sequence[str] | None = None,
    batch_rows: int = 65_536,
    rejects: str | os.PathLike[str] | None = None,
    column_types: Mapping[str, pa.DataType] | None = None,
) -> Source:
    """Open what a master is built from.

    `source` is a path to a Parquet (.parquet), CSV (.csv, .csv.gz) or Arrow IPC (.arrow, .feather,
    .ipc, file or stream format) file; a folder or a glob pattern of such files of one kind, read
    in the order of their names (`**` descends into folders; names in a folder that begin with "."
    or "_" are left out); a list of paths, read in the order given; a pyarrow Table, RecordBatch,
    RecordBatchReader or Dataset; an object with the Arrow stream interface, such as a polars
    DataFrame; or an iterable of record batches. All files, or batches, must have the same columns.

    `columns` picks columns and puts them in that order. Batches have at most `batch_rows` rows.

    CSV files have a header line with the column names, which also decides the separator (comma,
    semicolon, tab or bar). Text is UTF-8, quoted by `"` and escaped by doubling it; quoted text
    may span lines; empty lines are skipped. An empty field is null, except that "" in a text
    column is the empty string. The first 20,480 rows over all files decide each column's type:
    int64, float64, bool, date32 (2026-01-31), timestamp (ISO 8601 without a zone) or, for
    everything else, string. Integers with leading zeros, and integers too large for int64, stay
    text, since as numbers different keys could become equal. So a value that does not fit makes
    its column text when it is among these rows, and its row bad when it comes later.
    `column_types` sets the type of the columns it names instead.

    A bad row has another number of fields than the header, a quote that is never closed or that
    text follows, bytes that are not UTF-8, or a value that is not of its column's type (only the
    picked columns are looked at). With `rejects=None` the first one raises `BadRowError`.
    Otherwise it is left out, counted in `Source.rejected_rows` and written to the file `rejects`
    as CSV (file, line, column, error, text), which is made anew at each reading. Of a row whose
    quotes are wrong only the first line is rejected; reading goes on with the next line.
    """
    if batch_rows < 1:
        raise OptionError(f"batch_rows is {batch_rows}", hint="give at least 1")
    if isinstance(columns, str):
        raise OptionError(f"columns is the text {columns!r}", hint="give a list of names")
    if isinstance(source, (str, os.PathLike)):
        paths: list[Path] | None = _find_files(source)
    elif isinstance(source, (list, tuple)) and source and _is_path(source[0]):
        paths = _find_listed(source)
    else:
        paths = None
    if paths is not None:
        kind = _common_kind(paths)
        name = _name_of(kind, paths)
        if kind == "CSV":
            return _open_csv(paths, name, columns, batch_rows, rejects, column_types or {})
    if column_types:
        raise OptionError("column_types is for CSV only", hint="other sources carry their types")
    if paths is None:
        return _open_in_memory(source, columns, batch_rows)
    if kind == "Parquet":
        return _open_parquet(paths, name, columns, batch_rows)
    return _open_ipc(paths, name, columns, batch_rows)


# ------------------------------------------------------------------------------- finding files


def _is_path(item: object) -> bool:
    return isinstance(item, (str, os.PathLike))


def _find_listed(items: Sequence[object]) -> list[Path]:
    found: list[Path] = []
    for item in items:
        if not isinstance(item, (str, os.PathLike)):
            raise SourceError(f"a list of paths holds a {type(item).__name__}", hint=_ACCEPTED)
        found.extend(_find_files(item))
    return found


def _find_files(where: str | os.PathLike[str]) -> list[Path]:
    path = Path(where)
    if path.is_file():
        return [path]
    if path.is_dir():
        return _list_folder(path)
    pattern = str(path)
    if not glob.has_magic(pattern):
        raise SourceError(f"there is no file or folder {pattern!r}", hint=_near_files(path))
    # glob.glob and not Path.glob: the pattern may be absolute and may cross folders.
    found = sorted(p for p in map(Path, glob.glob(pattern, recursive=True)) if p.is_file())  # noqa: PTH207
    if not found:
        raise SourceError(f"no file matches the pattern {pattern!r}", hint="check folder and name")
    return found


def _near_files(path: Path) -> str:
    folder = path.parent
    if not folder.is_dir():
        return f"there is no folder {str(folder)!r} either"
    near = difflib.get_close_matches(path.name, sorted(p.name for p in folder.iterdir()), n=1)
    return f"did you mean {str(folder / near[0])!r}?" if near else "check the path"


def _list_folder(folder: Path) -> list[Path]:
    entries = sorted(p for p in folder.iterdir() if not p.name.startswith((".", "_")))
    if not entries:
        raise SourceError(f"the folder {str(folder)!r} holds no files", hint=f"known: {_KNOWN}")
    for entry in entries:
        # Leaving anything out in silence could lose a part of the master.
        if not entry.is_file():
            raise SourceError(
                f"the folder {str(folder)!r} holds another folder, {entry.name!r}",
                hint="use a pattern such as folder/**/*.parquet to say which files are meant",
            )
    return entries


def _kind_of(path: Path) -> str:
    name = path.name.lower()
    for suffix, kind in _KINDS.items():
        if name.endswith(suffix):
            return kind
    suffix = path.suffix or "no suffix"
    raise SourceError(
        f"{str(path)!r} has an unknown suffix ({suffix}); known: {_KNOWN}",
        hint="rename the file, or use a pattern such as folder/*.parquet to leave others out",
    )


def _common_kind(paths: list[Path]) -> str:
    kind = _kind_of(paths[0])
    for path in paths[1:]:
        other = _kind_of(path)
        if other != kind:
            raise SourceError(
                f"{str(paths[0])!r} is {kind} and {str(path)!r} is {other}",
                hint="read files of one kind; a pattern such as folder/*.parquet picks them",
            )
    return kind


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _name_of(kind: str, paths: list[Path]) -> str:
    if len(paths) == 1:
        return f"{kind} file {str(paths[0])!r}"
    return f"{_counted(len(paths), f'{kind} file')} ({str(paths[0])!r} to {str(paths[-1])!r})"


# ------------------------------------------------------------------------------------- schemas


def _picked(schema: pa.Schema, columns: Sequence[str] | None, name: str) -> pa.Schema:
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
        raise OptionError(f"columns={list(columns)!r}", hint="name each column once, at least one")
    for column in columns:
        if column not in known:
            raise unknown_name(f"column in {name}:", column, known)
    return pa.schema([schema.field(column) for column in columns])


def _agreed(first: pa.Schema, first_name: str, other: pa.Schema, other_name: str) -> pa.Schema:
    """The common schema; names and types must agree, a column is nullable if either one is."""
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


def _shaped(batch: pa.RecordBatch, schema: pa.Schema, rows: int) -> Iterator[pa.RecordBatch]:
    """Pick and order the columns of a batch and cut it into pieces of at most `rows` rows."""
    arrays = [batch.column(name) for name in schema.names]
    shaped = pa.RecordBatch.from_arrays(arrays, schema=schema)
    for begin in range(0, shaped.num_rows, rows):
        yield shaped.slice(begin, rows)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Errors of the libraries that read a file name the file."""
    try:
        yield
    except _READ_ERRORS as error:
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        raise SourceError(
            f"{str(path)!r} cannot be read: {first_line}",
            hint="is the file whole, and of the kind that its suffix says?",
        ) from error


# ----------------------------------------------------------------------------------- in memory


def _open_in_memory(source: Any, columns: Sequence[str] | None, batch_rows: int) -> Source:
    if isinstance(source, pa.RecordBatch):
        source = pa.Table.from_batches([source])
    if isinstance(source, pa.Table):
        name = "Arrow table in memory"
        schema = _picked(source.schema, columns, name)
        rows = source.num_rows
        return _of_iterable(name, schema, rows, False, source.to_batches, batch_rows)
    if isinstance(source, pads.Dataset):
        return _open_dataset(source, columns, batch_rows)
    if not isinstance(source, pa.RecordBatchReader) and hasattr(source, "__arrow_c_stream__"):
        try:
            source = pa.RecordBatchReader.from_stream(source)
        except (pa.ArrowException, TypeError) as error:
            raise SourceError(
                f"a {type(source).__name__} is not a table: {error}", hint=f"pass {_ACCEPTED}"
            ) from error
    if isinstance(source, pa.RecordBatchReader):
        name = "Arrow batch reader"
        schema = _picked(source.schema, columns, name)
        return _of_iterable(name, schema, None, True, lambda: source, batch_rows)
    if isinstance(source, Iterable) and not isinstance(source, (bytes, Mapping)):
        return _open_batches(source, columns, batch_rows)
    raise SourceError(f"a {type(source).__name__} is not a source", hint=f"pass {_ACCEPTED}")


def _open_batches(source: Iterable[Any], columns: Sequence[str] | None, rows: int) -> Source:
    name = "iterable of record batches"
    iterator = iter(source)
    try:
        first = next(iterator)
    except StopIteration:
        raise SourceError(
            "the iterable of record batches is empty, so its columns are not known",
            hint="pass a RecordBatchReader, which has a schema, or an empty Table",
        ) from None
    if not isinstance(first, pa.RecordBatch):
        raise SourceError(
            f"the iterable yields {type(first).__name__}, not record batches",
            hint=f"pass {_ACCEPTED}",
        )
    schema = _picked(first.schema, columns, name)
    if isinstance(source, (list, tuple)):
        items = list(source)
        known = sum(b.num_rows for b in items if isinstance(b, pa.RecordBatch))
        return _of_iterable(name, schema, known, False, lambda: items, rows)
    return _of_iterable(name, schema, None, True, lambda: chain([first], iterator), rows)


def _of_iterable(
    name: str,
    schema: pa.Schema,
    rows: int | None,
    one_shot: bool,
    items: Callable[[], Iterable[Any]],
    batch_rows: int,
) -> Source:
    def opener(_: _Progress) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(items(), start=1):
            if not isinstance(batch, pa.RecordBatch):
                raise SourceError(
                    f"item {number} of the {name} is a {type(batch).__name__}",
                    hint="every item must be a pyarrow RecordBatch",
                )
            if not all(column in batch.schema.names for column in schema.names):
                kept = pa.schema(list(batch.schema))
            else:
                kept = pa.schema([batch.schema.field(column) for column in schema.names])
            _agreed(schema, "the first batch", kept, f"batch {number}")
            yield from _shaped(batch, schema, batch_rows)

    return Source(schema, rows, name, one_shot, opener)


def _open_dataset(source: Any, columns: Sequence[str] | None, batch_rows: int) -> Source:
    name = f"pyarrow {type(source).__name__}"
    schema = _picked(source.schema, columns, name)
    options: dict[str, Any] = {}
    rows = None
    if isinstance(source, pads.InMemoryDataset):
        one_shot = False
    else:
        one_shot = not isinstance(source, (pads.FileSystemDataset, pads.UnionDataset))
    file_format = getattr(source, "format", None)
    if isinstance(file_format, pads.ParquetFileFormat):
        options["fragment_scan_options"] = pads.ParquetFragmentScanOptions(
            use_buffered_stream=True, buffer_size=_PARQUET_BUFFER_BYTES, pre_buffer=False
        )
    if isinstance(file_format, (pads.ParquetFileFormat, pads.IpcFileFormat)):
        rows = source.count_rows()  # from the files' metadata alone

    def opener(_: _Progress) -> Iterator[pa.RecordBatch]:
        scanner = source.scanner(
            columns=schema.names,
            batch_size=batch_rows,
            batch_readahead=1,
            fragment_readahead=1,
            **options,
        )
        try:
            for batch in scanner.to_batches():
                yield from _shaped(batch, schema, batch_rows)
        except _READ_ERRORS as error:
            raise SourceError(f"{name} cannot be read: {error}", hint="check its files") from error

    return Source(schema, rows, name, one_shot, opener)


# --------------------------------------------------------------------------- Parquet, Arrow IPC


def _open_parquet(
    paths: list[Path], name: str, columns: Sequence[str] | None, batch_rows: int
) -> Source:
    rows = 0
    schema: Any = None
    for path in paths:
        with _reading(path), pq.ParquetFile(path) as file:
            rows += file.metadata.num_rows
            found = file.schema_arrow
        picked = _picked(found, columns, repr(str(path)))
        schema = picked if schema is None else _agreed(schema, str(paths[0]), picked, str(path))

    def opener(_: _Progress) -> Iterator[pa.RecordBatch]:
        for path in paths:
            with (
                _reading(path),
                pq.ParquetFile(path, pre_buffer=False, buffer_size=_PARQUET_BUFFER_BYTES) as file,
            ):
                for batch in file.iter_batches(batch_size=batch_rows, columns=schema.names):
                    yield from _shaped(batch, schema, batch_rows)

    return Source(schema, rows, name, False, opener)


def _open_ipc(
    paths: list[Path], name: str, columns: Sequence[str] | None, batch_rows: int
) -> Source:
    rows: int | None = 0
    schema: Any = None
    for path in paths:
        with _reading(path), ExitStack() as stack:
            reader, is_file = _ipc_reader(path, None, stack)
            found = reader.schema
            if rows is not None:
                # The file format has an index of its batches; a stream must be read to be counted.
                rows = rows + pads.dataset(path, format="ipc").count_rows() if is_file else None
        picked = _picked(found, columns, repr(str(path)))
        schema = picked if schema is None else _agreed(schema, str(paths[0]), picked, str(path))

    def opener(_: _Progress) -> Iterator[pa.RecordBatch]:
        for path in paths:
            with _reading(path), ExitStack() as stack:
                reader, is_file = _ipc_reader(path, schema.names, stack)
                batches: Iterable[pa.RecordBatch] = reader
                if is_file:
                    batches = map(reader.get_batch, range(reader.num_record_batches))
                for batch in batches:
                    yield from _shaped(batch, schema, batch_rows)

    return Source(schema, rows, name, False, opener)


def _ipc_reader(path: Path, names: Sequence[str] | None, stack: ExitStack) -> tuple[Any, bool]:
    """A reader of either IPC format, told apart by its first bytes, and whether it is a file."""
    # Read calls rather than a memory map: batches already given out must not keep the file open.
    file = stack.enter_context(pa.OSFile(str(path), "rb"))
    head = file.read(6)
    file.seek(0)
    if head[:4] == b"FEA1":
        raise SourceError(
            f"{str(path)!r} is in the old Feather format, version 1",
            hint="write it again with pyarrow.feather.write_feather",
        )
    is_file = head == b"ARROW1"
    opener = pa.ipc.open_file if is_file else pa.ipc.open_stream
    reader = stack.enter_context(opener(file))
    if names is not None:
        wanted = sorted(reader.schema.get_field_index(name) for name in names)
        file.seek(0)
        options = pa.ipc.IpcReadOptions(included_fields=wanted)
        reader = stack.enter_context(opener(file, options=options))
    return reader, is_file


# ----------------------------------------------------------------------------------------- CSV

_BLOCK_BYTES = 1 << 22
# Room for the places of fields: what a batch may hold is bounded by cells, not only by rows.
_MAX_CELLS = 1 << 21
_MAX_BAD_PER_CALL = 1024
_SHOWN_CHARACTERS = 200
_SHOWN_BYTES = 1000  # of a row that is too long

_QUOTE = np.uint8(ord('"'))
_LF = np.uint8(ord("\n"))
_CR = np.uint8(ord("\r"))
_SPACE = np.uint8(ord(" "))
_TAB = np.uint8(ord("\t"))

# What the tokeniser finds wrong with a row.
_WRONG_COUNT = 1
_OPEN_QUOTE = 2
_AFTER_QUOTE = 3
_TOO_LONG = 4


@dataclass(frozen=True)
class _CsvFile:
    path: Path
    separator: int  # a byte
    names: tuple[str, ...]
    data_begin: int  # offset of the first byte after the header line, in the unpacked text
    header_lines: int


@dataclass(frozen=True)
class _BadRow:
    path: Path
    line: int
    column: str
    error: str
    text: str


def _open_csv(
    paths: list[Path],
    name: str,
    columns: Sequence[str] | None,
    batch_rows: int,
    rejects: str | os.PathLike[str] | None,
    column_types: Mapping[str, pa.DataType],
) -> Source:
    rejects_path = None if rejects is None else Path(rejects)
    if rejects_path is not None and any(rejects_path.resolve() == p.resolve() for p in paths):
        raise OptionError(
            f"the rejects file {str(rejects_path)!r} is one of the files read",
            hint="give a name that the source does not cover",
        )
    files = [_read_header(path) for path in paths]
    as_text = [pa.schema([(n, pa.string()) for n in file.names]) for file in files]
    picked = _picked(as_text[0], columns, repr(str(paths[0])))
    for file, text in zip(files[1:], as_text[1:], strict=True):
        # Fields are found by their position: picking columns does not excuse another order.
        _agreed(as_text[0], str(paths[0]), text, str(file.path))
    for column, wanted in column_types.items():
        if column not in files[0].names:
            raise unknown_name(f"column in {str(paths[0])!r}:", column, files[0].names)
        _check_castable(column, wanted)
    schema = _infer_types(files, picked, column_types)

    def opener(progress: _Progress) -> Iterator[pa.RecordBatch]:
        with ExitStack() as stack:
            write: Callable[[_BadRow], None] = _raise_bad_row
            if rejects_path is not None:
                try:
                    target = rejects_path.open("w", newline="", encoding="utf-8")
                except OSError as error:
                    raise SourceError(
                        f"the rejects file {str(rejects_path)!r} cannot be written: {error}"
                    ) from error
                writer = csv.writer(stack.enter_context(target))
                writer.writerow(["file", "line", "column", "error", "text"])

                def write(bad: _BadRow) -> None:
                    progress.rejected_rows += 1
                    writer.writerow([str(bad.path), bad.line, bad.column, bad.error, bad.text])

            for file in files:
                yield from _scan_csv(file, schema, batch_rows, write)

    return Source(schema, None, name, False, opener)


def _raise_bad_row(bad: _BadRow) -> None:
    where = f"{str(bad.path)!r}, line {bad.line}"
    if bad.column:
        where += f", column {bad.column!r}"
    text = bad.text
    if len(text) > _SHOWN_CHARACTERS:
        text = text[:_SHOWN_CHARACTERS] + "..."
    raise BadRowError(
        f"{where}: {bad.error}; the row is {text!r}",
        hint="rejects=path leaves bad rows out and collects them in that file; "
        "column_types={name: type} sets the type of a column",
    )


def _check_castable(column: str, wanted: pa.DataType) -> None:
    try:
        pa.nulls(0, pa.string()).cast(wanted)
    except pa.ArrowException as error:
        raise OptionError(
            f"column_types asks for {wanted} for {column!r}, which text cannot become",
            hint="use numbers, bool, dates, timestamps, decimals, strings or binary",
        ) from error


def _text_of(path: Path) -> BufferedIOBase:
    with _reading(path):
        if path.name.lower().endswith(".gz"):
            return gzip.GzipFile(path, "rb")
        return path.open("rb")


def _read_header(path: Path) -> _CsvFile:
    with _reading(path), _text_of(path) as file:
        head = file.read(MAX_CSV_RECORD_BYTES)
    begin = 3 if head.startswith(b"\xef\xbb\xbf") else 0
    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise SourceError(f"{str(path)!r} is UTF-16 text", hint="save it as UTF-8")
    lines_before = 0
    while head[begin : begin + 1] in (b"\n", b"\r") and begin < len(head):
        lines_before += head[begin : begin + 1] == b"\n"
        begin += 1
    if begin == len(head):
        raise SourceError(
            f"{str(path)!r} is empty", hint="a CSV file begins with a line of column names"
        )
    end = head.find(b"\n", begin)
    if end < 0:
        end = len(head)
        if end == MAX_CSV_RECORD_BYTES:
            raise SourceError(
                f"the first line of {str(path)!r} is longer than {end:,} bytes",
                hint="a CSV file begins with a line of column names that ends in a line feed",
            )
    try:
        line = head[begin:end].decode().removesuffix("\r")
    except UnicodeDecodeError as error:
        raise SourceError(f"the header of {str(path)!r} is not UTF-8 text: {error}") from error
    if "\r" in line:
        raise SourceError(
            f"the lines of {str(path)!r} end in a carriage return alone",
            hint="convert the file to line feeds",
        )
    unquoted = "".join(line.split('"')[::2])
    separator = max(",;\t|", key=unquoted.count)  # the first of equals, so a comma by default
    try:
        names = next(csv.reader([line], delimiter=separator, strict=True))
    except csv.Error as error:
        raise SourceError(
            f"the header of {str(path)!r} cannot be read: {error}",
            hint="column names must be on one line, with quotes closed",
        ) from error
    # Writers that store a row number leave its name empty; a name is needed to talk about it.
    names = [n.strip() or f"column{i}" for i, n in enumerate(names)]
    return _CsvFile(path, ord(separator), tuple(names), min(end + 1, len(head)), lines_before + 1)


def _scan_csv(
    file: _CsvFile, schema: pa.Schema, batch_rows: int, reject: Callable[[_BadRow], None]
) -> Generator[pa.RecordBatch, None, None]:
    """The good rows of one file; `reject` is called for the bad ones, in the order of lines."""
    slots = np.full(len(file.names), -1, dtype=np.int64)
    for slot, column in enumerate(schema.names):
        slots[file.names.index(column)] = slot
    max_rows = max(1, min(batch_rows, _MAX_CELLS // len(schema)))
    # Field by field in memory, since conversion goes column by column.
    starts = np.empty((len(schema), max_rows), dtype=np.int32)
    ends = np.empty((len(schema), max_rows), dtype=np.int32)
    rows = np.empty((max_rows, 3), dtype=np.int64)
    bad = np.empty((_MAX_BAD_PER_CALL, 6), dtype=np.int64)
    text = np.empty(MAX_CSV_RECORD_BYTES + _BLOCK_BYTES, dtype=np.uint8)
    begin = end = 0
    state = np.array([file.header_lines + 1, 0], dtype=np.int64)  # line number, inside a long line
    final = False
    with _text_of(file.path) as source:
        with _reading(file.path):
            source.seek(file.data_begin)
        while not (final and begin == end):
            position, n_rows, n_bad = _tokenise(
                text, begin, end, final, np.uint8(file.separator), slots, max_rows,
                MAX_CSV_RECORD_BYTES, state, starts, ends, rows, bad,
            )  # fmt: skip
            if n_rows or n_bad:
                batch = _convert(
                    file, schema, text, starts, ends, rows[:n_rows], bad[:n_bad], reject
                )
                if batch.num_rows:
                    yield batch
            elif position == begin and not final:
                # Nothing whole is left: move the rest to the front and fill up behind it.
                text[: end - begin] = text[begin:end]
                begin, end = 0, end - begin
                with _reading(file.path):
                    got = source.readinto(text.data[end:])
                end += got
                final = got == 0
                continue
            begin = position


def _convert(
    file: _CsvFile,
    schema: pa.Schema,
    text: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int32],
    ends: npt.NDArray[np.int32],
    rows: npt.NDArray[np.int64],
    bad: npt.NDArray[np.int64],
    reject: Callable[[_BadRow], None],
) -> pa.RecordBatch:
    """Make a batch of tokenised rows, without those whose values do not fit their columns."""
    n_rows = len(rows)
    arrays = []
    wrong = np.full(n_rows, -1, dtype=np.int64)  # the first column that does not fit
    for slot, column in enumerate(schema):
        array, misfits = _to_array(text, starts[slot, :n_rows], ends[slot, :n_rows], column.type)
        arrays.append(array)
        if misfits is not None:
            wrong[misfits & (wrong < 0)] = slot
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    wrong_rows = np.flatnonzero(wrong >= 0)
    if not len(bad) and not len(wrong_rows):
        return batch

    found: list[_BadRow] = []
    for begin, end, line, code, column_number, count in bad.tolist():
        raw = text[begin:end].tobytes().decode(errors="replace")
        column_name = file.names[column_number] if 0 <= column_number < len(file.names) else ""
        found.append(_BadRow(file.path, line, column_name, _explain(file, code, count), raw))
    for row in wrong_rows.tolist():
        slot = int(wrong[row])
        column = schema.field(slot)
        begin, end, line = rows[row].tolist()
        field_end = int(ends[slot, row])
        value = text[int(starts[slot, row]) : field_end if field_end >= 0 else ~field_end].tobytes()
        shown = value.decode(errors="replace")
        if len(shown) > _SHOWN_CHARACTERS:
            shown = shown[:_SHOWN_CHARACTERS] + "..."
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            error = f"{shown!r} is not UTF-8 text"
        else:
            error = f"{shown!r} is not of type {column.type}"
        raw = text[begin:end].tobytes().decode(errors="replace")
        found.append(_BadRow(file.path, line, column.name, error, raw))
    for one in sorted(found, key=lambda b: b.line):
        reject(one)
    return batch.filter(pa.array(wrong < 0)) if len(wrong_rows) else batch


def _explain(file: _CsvFile, code: int, count: int) -> str:
    if code == _WRONG_COUNT:
        return f"{_counted(len(file.names), 'field')} wanted, {count:,} found"
    if code == _OPEN_QUOTE:
        return f"a quote is not closed within {MAX_CSV_RECORD_BYTES:,} bytes or before the end"
    if code == _AFTER_QUOTE:
        return "a separator or the end of the line wanted after a closing quote"
    return f"the row is longer than {MAX_CSV_RECORD_BYTES:,} bytes (only its begin is shown)"


def _to_array(
    text: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int32],
    ends: npt.NDArray[np.int32],
    wanted: pa.DataType,
) -> tuple[pa.Array, npt.NDArray[np.bool_] | None]:
    """One column from its fields' places, and which values do not fit (None: all do)."""
    n = len(starts)
    misfits = np.zeros(n, dtype=np.bool_)
    valid = np.empty(n, dtype=np.bool_)
    if pa.types.is_int64(wanted):
        values = np.empty(n, dtype=np.int64)
        n_misfits = _parse_integers(text, starts, ends, values, valid, misfits)
        return pa.array(values, mask=~valid), misfits if n_misfits else None
    is_text = _is_text(wanted)
    offsets = np.empty(n + 1, dtype=np.int32)
    total = _measure(text, starts, ends, not is_text, offsets, valid)
    data = np.empty(total, dtype=np.uint8)
    n_misfits = _copy_text(text, starts, ends, not is_text, offsets, data, misfits)
    if n_misfits:
        # Arrow must not see invalid UTF-8; these rows are dropped anyway.
        valid &= ~misfits
    bitmap = pa.py_buffer(np.packbits(valid, bitorder="little"))
    buffers = [bitmap, pa.py_buffer(offsets), pa.py_buffer(data)]
    array = pa.StringArray.from_buffers(n, *buffers[1:], buffers[0])
    if not pa.types.is_string(wanted):
        array = _cast(array, wanted, misfits)
    return array, misfits if misfits.any() else None


def _is_text(wanted: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(wanted)
        or pa.types.is_large_string(wanted)
        or pa.types.is_string_view(wanted)
        or pa.types.is_binary(wanted)
        or pa.types.is_large_binary(wanted)
        or pa.types.is_fixed_size_binary(wanted)
        or pa.types.is_dictionary(wanted)
    )


def _cast(array: pa.Array, wanted: pa.DataType, misfits: npt.NDArray[np.bool_]) -> pa.Array:
    """Cast text; values that do not fit become null and are marked."""
    # Arrow says that a value does not fit but not which one: halve until it stands alone. A batch
    # without bad values, the usual case, takes one call.
    try:
        return array.cast(wanted)
    except pa.ArrowInvalid:
        if len(array) == 1:
            misfits[0] = True
            return pa.nulls(1, wanted)
    half = len(array) // 2
    left = _cast(array.slice(0, half), wanted, misfits[:half])
    right = _cast(array.slice(half), wanted, misfits[half:])
    return pa.concat_arrays([left, right])


# ------------------------------------------------------------------------- types of CSV columns

_LEADING_ZERO = r"^\s*[+-]?0[0-9]"
_LONG_INTEGER = r"^\s*[+-]?[0-9]{16,}\s*$"  # more digits than a float64 keeps
_PATTERNS: list[tuple[pa.DataType, str]] = [
    (pa.bool_(), r"^\s*(?i:true|false)\s*$"),
    (pa.date32(), r"^\s*[0-9]{4}-[0-9]{2}-[0-9]{2}\s*$"),
    (pa.timestamp("us"), r"^\s*[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}[0-9:.]*\s*$"),
]


class _Guess:
    """The types that all values of one column seen so far have."""

    def __init__(self) -> None:
        self.seen = False
        self.integer = True
        self.number = True
        self.others = list(_PATTERNS)

    def look(self, values: pa.Array) -> None:
        values = values.drop_null()
        values = values.filter(pc.not_equal(values, ""))
        if not len(values):
            return
        self.seen = True
        if self.number and _any_match(values, _LEADING_ZERO):
            self.integer = self.number = False
        if self.integer:
            self.integer = _are_integers(values)
        if self.number and not self.integer:
            self.number = _casts(values, pa.float64()) and not _any_match(values, _LONG_INTEGER)
        self.others = [
            (wanted, pattern)
            for wanted, pattern in self.others
            if pc.all(pc.match_substring_regex(values, pattern)).as_py() and _casts(values, wanted)
        ]

    def verdict(self) -> pa.DataType:
        if not self.seen:
            return pa.string()
        if self.integer:
            return pa.int64()
        if self.number:
            return pa.float64()
        return self.others[0][0] if self.others else pa.string()


def _any_match(values: pa.Array, pattern: str) -> bool:
    return bool(pc.any(pc.match_substring_regex(values, pattern)).as_py())


def _casts(values: pa.Array, wanted: pa.DataType) -> bool:
    try:
        pc.utf8_trim(values, " \t").cast(wanted)
    except pa.ArrowInvalid:
        return False
    return True


def _are_integers(values: pa.Array) -> bool:
    _, offsets, data = values.buffers()
    places = np.frombuffer(offsets, dtype=np.int32)[values.offset : values.offset + len(values) + 1]
    found = np.empty(len(values), dtype=np.int64)
    flags = np.zeros((2, len(values)), dtype=np.bool_)
    text = np.frombuffer(data, dtype=np.uint8)
    return bool(_parse_integers(text, places[:-1], places[1:], found, flags[0], flags[1]) == 0)


def _infer_types(
    files: list[_CsvFile], picked: pa.Schema, column_types: Mapping[str, pa.DataType]
) -> pa.Schema:
    open_names = [n for n in picked.names if n not in column_types]
    guesses = {n: _Guess() for n in open_names}
    left = CSV_SAMPLE_ROWS
    if open_names:
        as_text = pa.schema([(n, pa.string()) for n in open_names])
        for file in files:
            # Bad rows say nothing about types; the reading proper reports them.
            with closing(_scan_csv(file, as_text, left, lambda _: None)) as batches:
                for batch in batches:
                    batch = batch.slice(0, left)
                    for n in open_names:
                        guesses[n].look(batch.column(n))
                    left -= batch.num_rows
                    if left <= 0:
                        break
            if left <= 0:
                break
    return pa.schema(
        [(n, column_types[n] if n in column_types else guesses[n].verdict()) for n in picked.names]
    )


# --------------------------------------------------------------------------------- CSV kernels


@kernel
def _tokenise(
    text: Any,
    begin: Any,
    end: Any,
    final: Any,
    separator: Any,
    slots: Any,
    max_rows: Any,
    max_bytes: Any,
    state: Any,
    starts: Any,
    ends: Any,
    rows: Any,
    bad: Any,
) -> Any:
    """Find the fields of the whole rows in text[begin:end]; `final` when nothing follows.

    Writes the places of wanted fields to starts and ends (a start of -1 is an empty, unquoted
    field; an end of ~e means that the field ends at e and holds doubled quotes), rows as (begin,
    end, line) and bad rows as (begin, end, line, code, column, fields). Returns where it stopped
    and both counts. state is (line, 1 while the rest of an overlong line is being skipped).
    """
    n_columns = len(slots)
    n_rows = 0
    n_bad = 0
    p = begin
    while p < end and n_rows < max_rows and n_bad < len(bad):
        if state[1] == 1:
            while p < end and text[p] != _LF:
                p += 1
            if p < end:
                p += 1
                state[0] += 1
                state[1] = 0
            continue
        if text[p] == _LF:
            p += 1
            state[0] += 1
            continue
        if text[p] == _CR:
            if p + 1 == end and not final:
                break
            if p + 1 == end or text[p + 1] == _LF:
                p += 1
                continue

        row_begin = p
        lines = 0
        column = 0
        code = 0
        whole = False
        while True:
            field_begin = p
            doubled = False
            if p < end and text[p] == _QUOTE:
                closed = False
                p += 1
                while p < end:
                    byte = text[p]
                    if byte == _QUOTE:
                        if p + 1 < end and text[p + 1] == _QUOTE:
                            doubled = True
                            p += 2
                            continue
                        closed = p + 1 < end or final
                        break
                    if byte == _LF:
                        lines += 1
                    p += 1
                if not closed:
                    if final:
                        code = _OPEN_QUOTE
                    break
                field_begin += 1
                field_end = p
                p += 1
                if p < end and text[p] == _CR:
                    if p + 1 == end and not final:
                        break
                    if p + 1 == end or text[p + 1] == _LF:
                        p += 1
                if p < end and text[p] != separator and text[p] != _LF:
                    code = _AFTER_QUOTE
                    break
                place = field_begin
            else:
                while p < end and text[p] != separator and text[p] != _LF:
                    p += 1
                if p == end and not final:
                    break
                field_end = p
                at_end = p == end or text[p] == _LF
                if at_end and field_end > field_begin and text[field_end - 1] == _CR:
                    field_end -= 1
                place = field_begin if field_end > field_begin else -1
            if column < n_columns and slots[column] >= 0:
                starts[slots[column], n_rows] = place
                ends[slots[column], n_rows] = ~field_end if doubled else field_end
            column += 1
            if p == end:
                whole = True
                break
            if text[p] == _LF:
                whole = True
                lines += 1
                p += 1
                break
            p += 1  # the separator

        row_end = p
        while row_end > row_begin and (text[row_end - 1] == _LF or text[row_end - 1] == _CR):
            row_end -= 1
        # The limit holds for rows that happen to lie whole in the buffer, too: what is read must
        # not depend on where blocks end.
        if whole and row_end - row_begin <= max_bytes:
            if column == n_columns:
                rows[n_rows, 0] = row_begin
                rows[n_rows, 1] = row_end
                rows[n_rows, 2] = state[0]
                n_rows += 1
            else:
                bad[n_bad, 0] = row_begin
                bad[n_bad, 1] = row_end
                bad[n_bad, 2] = state[0]
                bad[n_bad, 3] = _WRONG_COUNT
                bad[n_bad, 4] = column if column < n_columns else -1
                bad[n_bad, 5] = column
                n_bad += 1
            state[0] += lines
            continue

        # The rest of the row has not been read yet, or its quotes are wrong, or it is too long.
        # Wrong quotes cost one line, because where the row would have ended nobody can know.
        if not whole and code == 0 and end - row_begin <= max_bytes + 2:
            p = row_begin
            break
        if code == 0 or p - row_begin > max_bytes:
            code = _OPEN_QUOTE
        line_end = row_begin
        while line_end < end and text[line_end] != _LF:
            line_end += 1
        if line_end == end and not final:
            if end - row_begin <= max_bytes + 2:
                p = row_begin
                break
            state[1] = 1  # its end is still to come
        row_end = line_end
        if row_end > row_begin and text[row_end - 1] == _CR:
            row_end -= 1
        if row_end - row_begin > max_bytes:
            code = _TOO_LONG
            row_end = row_begin + _SHOWN_BYTES
        bad[n_bad, 0] = row_begin
        bad[n_bad, 1] = row_end
        bad[n_bad, 2] = state[0]
        bad[n_bad, 3] = code
        bad[n_bad, 4] = column if code != _TOO_LONG else -1
        bad[n_bad, 5] = column
        n_bad += 1
        p = line_end
        if line_end < end:
            p += 1
            state[0] += 1
    return p, n_rows, n_bad


@kernel
def _parse_integers(
    text: Any, starts: Any, ends: Any, values: Any, valid: Any, misfits: Any
) -> Any:
    """Strictly digits with an optional sign and blanks around; returns how many do not fit."""
    n_misfits = 0
    for i in range(len(starts)):
        values[i] = 0
        valid[i] = False
        p = starts[i]
        e = ends[i]
        if p < 0:
            continue
        if e < 0:  # doubled quotes
            misfits[i] = True
            n_misfits += 1
            continue
        while p < e and (text[p] == _SPACE or text[p] == _TAB):
            p += 1
        while p < e and (text[e - 1] == _SPACE or text[e - 1] == _TAB):
            e -= 1
        if p == e:
            continue
        negative = text[p] == 45
        if negative or text[p] == 43:
            p += 1
        fits = p < e
        value = np.int64(0)  # kept negative: the lowest int64 has no positive counterpart
        while p < e:
            digit = np.int64(text[p]) - 48
            if digit < 0 or digit > 9 or value < -922337203685477580:
                fits = False
                break
            value *= 10
            if value < np.int64(-9223372036854775807) - 1 + digit:
                fits = False
                break
            value -= digit
            p += 1
        if not negative:
            if value == np.int64(-9223372036854775807) - 1:
                fits = False
            value = -value
        if fits:
            values[i] = value
            valid[i] = True
        else:
            misfits[i] = True
            n_misfits += 1
    return n_misfits


@kernel
def _measure(text: Any, starts: Any, ends: Any, trim: Any, offsets: Any, valid: Any) -> Any:
    """Offsets of the fields' text once copied; a null has none. Returns the total length."""
    total = 0
    offsets[0] = 0
    for i in range(len(starts)):
        p = starts[i]
        e = ends[i]
        valid[i] = p >= 0
        if p >= 0:
            if e < 0:
                e = ~e
                while p < e:
                    if text[p] == _QUOTE:
                        p += 1
                    total += 1
                    p += 1
            else:
                if trim:
                    while p < e and (text[p] == _SPACE or text[p] == _TAB):
                        p += 1
                    while p < e and (text[e - 1] == _SPACE or text[e - 1] == _TAB):
                        e -= 1
                    valid[i] = p < e
                total += e - p
        offsets[i + 1] = total
    return total


@kernel
def _copy_text(
    text: Any, starts: Any, ends: Any, trim: Any, offsets: Any, data: Any, misfits: Any
) -> Any:
    """Copy the fields to where `_measure` put them; marks and counts what is not UTF-8."""
    n_misfits = 0
    for i in range(len(starts)):
        p = starts[i]
        if p < 0:
            continue
        to = offsets[i]
        stop = offsets[i + 1]
        if ends[i] >= 0 and trim:
            while p < ends[i] and (text[p] == _SPACE or text[p] == _TAB):
                p += 1
        seen = np.uint8(0)
        while to < stop:
            byte = text[p]
            if ends[i] < 0 and byte == _QUOTE:
                p += 1
            data[to] = byte
            seen |= byte
            to += 1
            p += 1
        if seen < 128:
            continue
        # Well-formed UTF-8 as in table 3-7 of the Unicode Standard.
        p = offsets[i]
        while p < stop:
            lead = data[p]
            more = 0
            low = 0x80
            high = 0xBF
            if lead >= 0x80:
                if 0xC2 <= lead <= 0xDF:
                    more = 1
                elif 0xE0 <= lead <= 0xEF:
                    more = 2
                    if lead == 0xE0:
                        low = 0xA0
                    elif lead == 0xED:
                        high = 0x9F
                elif 0xF0 <= lead <= 0xF4:
                    more = 3
                    if lead == 0xF0:
                        low = 0x90
                    elif lead == 0xF4:
                        high = 0x8F
                else:
                    break
            if p + more >= stop:
                break
            if more > 0 and not low <= data[p + 1] <= high:
                break
            if more > 1 and not 0x80 <= data[p + 2] <= 0xBF:
                break
            if more > 2 and not 0x80 <= data[p + 3] <= 0xBF:
                break
            p += 1 + more
        if p < stop:
            misfits[i] = True
            n_misfits += 1
    return n_misfits
