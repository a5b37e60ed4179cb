"""Reading CSV files for a master.

A parser of our own, because none at hand keeps the two promises that a master needs: no value is
changed in silence (an integer column must not read 1.5 as 2), and every line of a file ends up
either in a row or among the rejected ones, with its true line number. pyarrow.csv, for one, counts
rows and not lines, and a quote that is never closed swallows the rows behind it without a word.

The dialect is described at `semistream.store.sources.open_source`.
"""

from __future__ import annotations

import csv
import gzip
import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from io import BufferedIOBase
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from semistream.core.errors import BadRowError, OptionError, SourceError, unknown_name
from semistream.kernels.csv import (
    AFTER_QUOTE,
    OPEN_QUOTE,
    WRONG_COUNT,
    copy_text,
    measure_text,
    parse_integers,
    tokenise,
)
from semistream.kernels.jit import read_only
from semistream.store.opened import (
    Progress,
    Source,
    agreed_columns,
    counted,
    picked_columns,
    reading,
)

SAMPLE_ROWS = 20_480
"""Rows at the start of a source that decide the types of its columns."""

MAX_RECORD_BYTES = 1 << 20
"""A longer row is rejected; so is a quote that does not close within this distance."""

BLOCK_BYTES = 1 << 22
"""Text is read in blocks of this size."""

_MAX_CELLS = 1 << 21  # places of fields in memory: a batch is bounded by cells, not only by rows
_MAX_BAD_PER_CALL = 1024
_SHOWN_CHARACTERS = 200


@dataclass(frozen=True)
class _File:
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


def open_csv(
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
    picked = picked_columns(as_text[0], columns, repr(str(paths[0])))
    for file, text in zip(files[1:], as_text[1:], strict=True):
        # Fields are found by their position: picking columns does not excuse another order.
        agreed_columns(as_text[0], str(paths[0]), text, str(file.path))
    for column, wanted in column_types.items():
        if column not in files[0].names:
            raise unknown_name(f"column in {str(paths[0])!r}:", column, files[0].names)
        _check_castable(column, wanted)
    schema = _infer_types(files, picked, column_types)

    def opener(progress: Progress) -> Iterator[pa.RecordBatch]:
        with ExitStack() as stack:
            write: Callable[[_BadRow], None] = _raise_bad_row
            if rejects_path is not None:
                try:
                    target = rejects_path.open("w", newline="", encoding="utf-8")
                except OSError as error:
                    raise SourceError(
                        f"the rejects file {str(rejects_path)!r} cannot be written: "
                        f"{error.strerror}",
                        hint="its folder must exist and be writable",
                    ) from error
                writer = csv.writer(stack.enter_context(target))
                writer.writerow(["file", "line", "column", "error", "text"])

                def write(bad: _BadRow) -> None:
                    progress.rejected_rows += 1
                    writer.writerow([str(bad.path), bad.line, bad.column, bad.error, bad.text])

            for file in files:
                yield from _scan(file, schema, batch_rows, write)

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
        # Rows are filtered after the cast, which Arrow cannot do for every type either.
        pa.nulls(0, pa.string()).cast(wanted).filter(pa.array([], pa.bool_()))
    except pa.ArrowException as error:
        raise OptionError(
            f"column_types asks for {wanted} for {column!r}, which text cannot become",
            hint="use numbers, bool, dates, timestamps, decimals, strings or binary",
        ) from error


def _text_of(path: Path) -> BufferedIOBase:
    with reading(path):
        if path.name.lower().endswith(".gz"):
            return gzip.GzipFile(path, "rb")
        return path.open("rb")


def _read_header(path: Path) -> _File:
    with reading(path), _text_of(path) as file:
        head = file.read(MAX_RECORD_BYTES)
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
        if end == MAX_RECORD_BYTES:
            raise SourceError(
                f"the first line of {str(path)!r} is longer than {end:,} bytes",
                hint="a CSV file begins with a line of column names that ends in a line feed",
            )
    try:
        line = head[begin:end].decode().removesuffix("\r")
    except UnicodeDecodeError as error:
        raise SourceError(
            f"the header of {str(path)!r} is not UTF-8 text: {error}", hint="save it as UTF-8"
        ) from error
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
    return _File(path, ord(separator), tuple(names), min(end + 1, len(head)), lines_before + 1)


def _scan(
    file: _File, schema: pa.Schema, batch_rows: int, reject: Callable[[_BadRow], None]
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
    text = np.empty(MAX_RECORD_BYTES + BLOCK_BYTES, dtype=np.uint8)
    begin = end = 0
    state = np.array([file.header_lines + 1, 0], dtype=np.int64)  # line number, inside a long line
    final = False
    with _text_of(file.path) as source:
        with reading(file.path):
            source.seek(file.data_begin)
        while not (final and begin == end):
            position, n_rows, n_bad = tokenise(
                text, begin, end, final, np.uint8(file.separator), slots, max_rows,
                MAX_RECORD_BYTES, state, starts, ends, rows, bad,
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
                with reading(file.path):
                    got = source.readinto(text.data[end:])
                end += got
                final = got == 0
                continue
            begin = position


def _convert(
    file: _File,
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


def _explain(file: _File, code: int, count: int) -> str:
    if code == WRONG_COUNT:
        return f"{counted(len(file.names), 'field')} wanted, {count:,} found"
    if code == OPEN_QUOTE:
        return f"a quote is not closed within {MAX_RECORD_BYTES:,} bytes or before the end"
    if code == AFTER_QUOTE:
        return "a separator or the end of the line wanted after a closing quote"
    return f"the row is longer than {MAX_RECORD_BYTES:,} bytes (only its begin is shown)"


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
        fields = read_only(text), read_only(starts), read_only(ends)
        n_misfits = parse_integers(*fields, values, valid, misfits)
        return pa.array(values, mask=~valid), misfits if n_misfits else None
    is_text = _is_text(wanted)
    offsets = np.empty(n + 1, dtype=np.int32)
    total = measure_text(text, starts, ends, not is_text, offsets, valid)
    data = np.empty(total, dtype=np.uint8)
    n_misfits = copy_text(text, starts, ends, not is_text, offsets, data, misfits)
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
    fields = read_only(text), read_only(places[:-1]), read_only(places[1:])
    return bool(parse_integers(*fields, found, flags[0], flags[1]) == 0)


def _infer_types(
    files: list[_File], picked: pa.Schema, column_types: Mapping[str, pa.DataType]
) -> pa.Schema:
    open_names = [n for n in picked.names if n not in column_types]
    guesses = {n: _Guess() for n in open_names}
    left = SAMPLE_ROWS
    if open_names:
        as_text = pa.schema([(n, pa.string()) for n in open_names])
        for file in files:
            # Bad rows say nothing about types; the reading proper reports them.
            with closing(_scan(file, as_text, left, lambda _: None)) as batches:
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
