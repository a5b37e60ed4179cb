"""What a master can be built from: files, Arrow data in memory, and streams of batches.

`open_source` finds the schema without reading the data; `Source.batches` then streams it, in the
order of the files, with memory that does not grow with their size.
"""

from __future__ import annotations

import difflib
import glob
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.ipc
import pyarrow.parquet as pq

from semistream.core.errors import OptionError, SourceError
from semistream.store.csv import open_csv
from semistream.store.opened import (
    READ_ERRORS,
    Progress,
    Source,
    agreed_columns,
    counted,
    picked_columns,
    reading,
    shaped,
)

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
# Parquet column chunks are read through a buffer of this size instead of whole, which keeps memory
# small for row groups of any size.
_PARQUET_BUFFER_BYTES = 1 << 20
# Batches of long rows have fewer of them.
_PARQUET_BATCH_BYTES = 32 << 20


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
        raise OptionError(f"batch_rows={batch_rows} is not above zero", hint="give at least 1")
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
            return open_csv(paths, name, columns, batch_rows, rejects, column_types or {})
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
        raise SourceError(
            f"the folder {str(folder)!r} holds no files",
            hint=f'known are {_KNOWN}; names that begin with "." or "_" are left out',
        )
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


def _name_of(kind: str, paths: list[Path]) -> str:
    if len(paths) == 1:
        return f"{kind} file {str(paths[0])!r}"
    return f"{counted(len(paths), f'{kind} file')} ({str(paths[0])!r} to {str(paths[-1])!r})"


# ----------------------------------------------------------------------------------- in memory


def _open_in_memory(source: Any, columns: Sequence[str] | None, batch_rows: int) -> Source:
    if isinstance(source, pa.RecordBatch):
        source = pa.Table.from_batches([source])
    if isinstance(source, pa.Table):
        name = "Arrow table in memory"
        schema = picked_columns(source.schema, columns, name)
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
        schema = picked_columns(source.schema, columns, name)
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
    schema = picked_columns(first.schema, columns, name)
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
    def opener(_: Progress) -> Iterator[pa.RecordBatch]:
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
            agreed_columns(schema, "the first batch", kept, f"batch {number}")
            yield from shaped(batch, schema, batch_rows)

    return Source(schema, rows, name, one_shot, opener)


def _open_dataset(source: Any, columns: Sequence[str] | None, batch_rows: int) -> Source:
    name = f"pyarrow {type(source).__name__}"
    schema = picked_columns(source.schema, columns, name)
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

    def opener(_: Progress) -> Iterator[pa.RecordBatch]:
        scanner = source.scanner(
            columns=schema.names,
            batch_size=batch_rows,
            batch_readahead=1,
            fragment_readahead=1,
            **options,
        )
        try:
            for batch in scanner.to_batches():
                yield from shaped(batch, schema, batch_rows)
        except READ_ERRORS as error:
            raise SourceError(f"{name} cannot be read: {error}", hint="check its files") from error

    return Source(schema, rows, name, one_shot, opener)


# --------------------------------------------------------------------------- Parquet, Arrow IPC


def _open_parquet(
    paths: list[Path], name: str, columns: Sequence[str] | None, batch_rows: int
) -> Source:
    rows = size_bytes = 0
    schema: Any = None
    for path in paths:
        with reading(path), pq.ParquetFile(path) as file:
            rows += file.metadata.num_rows
            groups = range(file.metadata.num_row_groups)
            size_bytes += sum(file.metadata.row_group(i).total_byte_size for i in groups)
            found = file.schema_arrow
        picked = picked_columns(found, columns, repr(str(path)))
        schema = agreed_columns(schema, str(paths[0]), picked, str(path))

    if size_bytes:
        batch_rows = max(min(batch_rows, _PARQUET_BATCH_BYTES * rows // size_bytes), 1)

    def opener(_: Progress) -> Iterator[pa.RecordBatch]:
        for path in paths:
            with (
                reading(path),
                pq.ParquetFile(path, pre_buffer=False, buffer_size=_PARQUET_BUFFER_BYTES) as file,
            ):
                for batch in file.iter_batches(batch_size=batch_rows, columns=schema.names):
                    yield from shaped(batch, schema, batch_rows)

    return Source(schema, rows, name, False, opener)


def _open_ipc(
    paths: list[Path], name: str, columns: Sequence[str] | None, batch_rows: int
) -> Source:
    rows: int | None = 0
    schema: Any = None
    for path in paths:
        with reading(path), ExitStack() as stack:
            reader, is_file = _ipc_reader(path, None, stack)
            found = reader.schema
            if rows is not None:
                # The file format has an index of its batches; a stream must be read to be counted.
                rows = rows + pads.dataset(path, format="ipc").count_rows() if is_file else None
        picked = picked_columns(found, columns, repr(str(path)))
        schema = agreed_columns(schema, str(paths[0]), picked, str(path))

    def opener(_: Progress) -> Iterator[pa.RecordBatch]:
        for path in paths:
            with reading(path), ExitStack() as stack:
                reader, is_file = _ipc_reader(path, schema.names, stack)
                batches: Iterable[pa.RecordBatch] = reader
                if is_file:
                    batches = map(reader.get_batch, range(reader.num_record_batches))
                for batch in batches:
                    yield from shaped(batch, schema, batch_rows)

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
