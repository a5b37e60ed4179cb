"""Pipeline files: a source, a master, a join, a sink and a trigger, in TOML.

Each table of the file is one record below; its fields are the keys that the table may have, their
types what the values must be, and fields without a default are required. What a record cannot
check, such as whether a column exists, is checked when the pipeline starts and before any row
moves.
"""

from __future__ import annotations

import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from semistream.core.budget import parse_bytes
from semistream.core.durations import parse_milliseconds
from semistream.core.errors import OptionError, SourceError, unknown_name

FILE_FORMATS = ("parquet", "json", "csv", "orc", "text")
"""Formats of sources and sinks that are folders of files."""

POSTGRES = "postgres"

Scalars = dict[str, str | int | float | bool]
Names = tuple[str, ...]


@dataclass(frozen=True)
class Source:
    """Where the stream comes from: anything that Spark reads as a stream, or the workload.

    `path` and `schema` (`"order_id long, amount double"`) are for files; without a schema it is
    taken from the files that are there. `options` go to the format as they are.
    """

    format: str
    path: Path | None = None
    schema: str | None = None
    options: Scalars = field(default_factory=dict)

    def check(self) -> None:
        """Raise for keys that do not go together."""
        _check_path(self.format, self.path)


@dataclass(frozen=True)
class Master:
    """The master on disk; with a `source` it is built first where it is not there yet.

    `source` is a file, a folder or a pattern, `key` its key column or columns; they and the
    others mean what they mean for `semistream.build_master`.
    """

    path: Path
    source: Path | None = None
    key: Names = ()
    shards: int = 1
    page_size: str | int | None = None

    def check(self) -> None:
        """Raise for keys that do not go together."""
        if (self.source is None) != (not self.key):
            raise OptionError(
                "source and key go together: they say what to build the master from",
                hint="give both, or none for a master that is there",
            )
        if self.source is None and (self.shards != 1 or self.page_size is not None):
            raise OptionError(
                "shards and page_size are for building, and there is no source to build from",
                hint="leave them out, or add source and key",
            )


@dataclass(frozen=True)
class Join:
    """How they are joined: the arguments of `semistream.spark.enrich`.

    `on` is a column, several, or a table that maps stream columns to master columns; `options` are
    those of the algorithm.
    """

    on: str | Names | dict[str, str]
    how: str = "inner"
    algorithm: str = "auto"
    memory: str | int = "64MB"
    columns: Names | None = None
    max_wait: str | None = None
    dead_letters: str | None = None
    tasks: int | None = None
    by_shard: bool = False
    io: str = "buffered"
    options: Scalars = field(default_factory=dict)

    def check(self) -> None:
        """Raise for values that no master makes right."""
        parse_bytes(self.memory, of=10**12)
        if self.max_wait is not None:
            parse_milliseconds(self.max_wait, what="max_wait")


@dataclass(frozen=True)
class Sink:
    """Where enriched rows go: files, PostgreSQL, or anything that Spark writes a stream to.

    `checkpoint` is the folder from which a restart goes on; for files it lies beside `path` unless
    given. `uri`, `table`, `key` and `schema` are for PostgreSQL, see `postgres_sink`.
    """

    format: str
    path: Path | None = None
    checkpoint: Path | None = None
    options: Scalars = field(default_factory=dict)
    uri: str | None = None
    table: str | None = None
    key: Names = ()
    schema: str | None = None

    def check(self) -> None:
        """Raise for keys that do not go together."""
        _check_path(self.format, self.path)
        if self.format == POSTGRES:
            for name in ("uri", "table", "checkpoint"):
                if getattr(self, name) is None:
                    raise OptionError(
                        f"format = {POSTGRES!r} needs {name}",
                        hint=f'for example {name} = "{_EXAMPLES[name]}"',
                    )
            return
        given = [name for name in ("uri", "table", "key", "schema") if getattr(self, name)]
        if given:
            raise OptionError(
                f"{', '.join(given)}: only for format = {POSTGRES!r}, and format is "
                f"{self.format!r}",
                hint="leave them out",
            )

    @property
    def checkpoint_path(self) -> Path | None:
        """The checkpoint's folder; None where Spark takes a temporary one."""
        if self.checkpoint is None and self.path is not None:
            return self.path.with_name(self.path.name + ".checkpoint")
        return self.checkpoint


_EXAMPLES = {
    "uri": "postgresql://user@host/database",
    "table": "enriched",
    "checkpoint": "enriched.checkpoint",
}


@dataclass(frozen=True)
class Trigger:
    """When a micro-batch starts: `every` so often, or as soon as the last one is done.

    With `available_now` the pipeline ends when everything that is there has been joined.
    """

    every: str | None = None
    available_now: bool = False

    def check(self) -> None:
        """Raise for keys that do not go together."""
        if self.every is not None:
            parse_milliseconds(self.every, what="every")
            if self.available_now:
                raise OptionError("every and available_now exclude each other", hint="drop one")


@dataclass(frozen=True)
class Spark:
    """Where it runs: Spark's master (`local[*]`, `spark://host:7077`) and Spark's settings."""

    master: str = "local[*]"
    name: str = "semistream"
    settings: Scalars = field(default_factory=dict)

    def check(self) -> None:
        """Nothing that Spark does not check itself."""


@dataclass(frozen=True)
class Pipeline:
    """All of it. Paths in a file are relative to the folder that it lies in."""

    source: Source
    master: Master
    join: Join
    sink: Sink
    trigger: Trigger = Trigger()
    spark: Spark = Spark()


def load_pipeline(path: str | Path) -> Pipeline:
    """The pipeline that a file describes."""
    path = Path(path)
    try:
        text = path.read_text()
    except OSError as error:
        raise SourceError(
            f"{str(path)!r} cannot be read: {error.strerror}", hint="give the path of a TOML file"
        ) from error
    return read_pipeline(text, path.absolute().parent, name=str(path))


def read_pipeline(text: str, folder: Path, *, name: str = "the pipeline") -> Pipeline:
    """The pipeline that a text describes; relative paths start at `folder`."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise OptionError(f"{name} is not TOML: {error}", hint="see docs/pipelines.md") from error
    hints = typing.get_type_hints(Pipeline)
    for table in document:
        if table not in hints:
            raise unknown_name(f"table in {name}", table, hints)
    return Pipeline(
        **{
            one.name: _record(hints[one.name], document[one.name], one.name, folder)
            for one in fields(Pipeline)
            if _is_there(one.name, document, one.default is MISSING, name)
        }
    )


def _is_there(table: str, document: Mapping[str, Any], required: bool, name: str) -> bool:
    if table in document:
        if not isinstance(document[table], dict):
            raise OptionError(f"{table} in {name} is not a table", hint=f"write [{table}]")
        return True
    if required:
        raise OptionError(f"{name} has no [{table}]", hint="see docs/pipelines.md for an example")
    return False


_T = TypeVar("_T")


def _record(kind: type[_T], table: Mapping[str, Any], where: str, folder: Path) -> _T:
    """A table of the file as a record of this kind."""
    hints = typing.get_type_hints(kind)
    for key in table:
        if key not in hints:
            raise unknown_name(f"key in [{where}]", key, hints)
    values = {}
    for one in fields(kind):  # type: ignore[arg-type]  # kind is a dataclass
        if one.name in table:
            value = table[one.name]
            values[one.name] = _value(hints[one.name], value, f"[{where}] {one.name}", folder)
        elif one.default is MISSING and one.default_factory is MISSING:
            raise OptionError(
                f"[{where}] lacks {one.name}", hint="see docs/pipelines.md for what it means"
            )
    record = kind(**values)
    try:
        record.check()  # type: ignore[attr-defined]
    except OptionError as error:
        raise OptionError(f"[{where}] {error.message}", hint=error.hint) from error
    return record


def _value(hint: Any, value: Any, where: str, folder: Path) -> Any:
    """The value as the type asks for it."""
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    for option in options:
        origin = typing.get_origin(option) or option
        if origin is Path and isinstance(value, str) and value:
            return folder / value
        if origin is tuple and _all_text(value):
            return tuple(value)
        if origin is tuple and isinstance(value, str) and str not in options:
            return (value,)
        if origin is dict and isinstance(value, dict):
            inner = typing.get_args(option)[1]
            return {key: _value(inner, one, f"{where}.{key}", folder) for key, one in value.items()}
        if origin is float and type(value) in (int, float):
            return float(value) if option is hint else value
        # An exact comparison: to Python true is a whole number.
        if origin in (str, int, bool) and type(value) is origin:
            return value
    wanted = " or ".join(
        _NAMES[typing.get_origin(option) or option]
        for option in options
        if option is not types.NoneType
    )
    raise OptionError(f"{where} = {value!r}: {wanted} is wanted")


def _all_text(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, str) for one in value)


_NAMES = {
    Path: "a path",
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    tuple: "a list of names",
    dict: "a table",
}


def _check_path(format: str, path: Path | None) -> None:
    if format in FILE_FORMATS and path is None:
        raise OptionError(f"format = {format!r} needs path", hint="give the folder of the files")
    if format in (POSTGRES, "rate", "console", "noop") and path is not None:
        raise OptionError(f"format = {format!r} has no path", hint="leave path out")
