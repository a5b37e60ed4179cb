"""Pipeline files: a source, masters, what is done with them, a sink and a trigger, in TOML.

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

import pyarrow as pa

from semistream.core.budget import parse_bytes
from semistream.core.durations import parse_milliseconds
from semistream.core.errors import OptionError, SourceError, UnknownNameError, unknown_name
from semistream.etl.unmatched import check_rule
from semistream.store.databases import is_database
from semistream.store.sql import Table

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
    fill: float = 1.0

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
class Step:
    """One of several things that are done with the stream, in the order of the file.

    `kind` is "enrich" (with a master: the keys of `[join]`, and `missing`, which says what becomes
    of rows that the master does not know), "surrogate_keys" or "duplicates" (see
    `semistream.etl`). `source`, `key`, `shards`, `page_size` and `fill` build the master where it
    is not there; `create`, a table from key columns to types, makes an empty lookup instead. The
    master of "enrich" may be a table in a database: `{ uri = "postgresql://…", table = "customers",
    key = "id" }`.
    """

    master: Path | Table
    on: str | Names | dict[str, str]
    kind: str = "enrich"
    source: Path | None = None
    key: Names = ()
    shards: int = 1
    page_size: str | int | None = None
    fill: float = 0.8
    create: dict[str, str] = field(default_factory=dict)
    how: str = "inner"
    missing: str | None = None
    retry_for: str | None = None
    algorithm: str = "auto"
    memory: str | int = "64MB"
    columns: Names | None = None
    max_wait: str | None = None
    tasks: int | None = None
    by_shard: bool = False
    io: str = "buffered"
    options: Scalars = field(default_factory=dict)
    surrogate: str = "surrogate"
    keep_key: bool = False
    unknown: int | None = None
    keep: str = "first"
    flag: str = "is_duplicate"

    def check(self) -> None:
        """Raise for values that no master makes right, and for keys of another kind."""
        if self.kind not in KINDS:
            raise unknown_name("kind of step", self.kind, KINDS)
        for name in set().union(*KINDS.values()) - KINDS[self.kind]:
            if getattr(self, name) != _DEFAULTS[name]:
                owner = next(kind for kind, names in KINDS.items() if name in names)
                raise OptionError(
                    f"{name} is for kind = {owner!r}, and this is {self.kind!r}",
                    hint="leave it out",
                )
        self._check_table()
        parse_bytes(self.memory, of=10**12)
        if self.max_wait is not None:
            parse_milliseconds(self.max_wait, what="max_wait")
        if self.missing is not None:
            check_rule(self.missing, self.retry_for)
            if self.how != "inner":
                raise OptionError("how and missing say the same twice", hint="leave how out")
        if isinstance(self.master, Path):
            self.build.check()
        if self.create and self.source is not None:
            raise OptionError("source and create exclude each other", hint="drop one")
        for column, type_ in self.create.items():
            arrow_type(type_, f"create.{column}")

    def _check_table(self) -> None:
        """Raise for keys that do not go with a table in a database."""
        if isinstance(self.master, Path):
            return
        if self.kind != "enrich":
            raise OptionError(
                f"kind = {self.kind!r} writes in its master, and a table in a database is only "
                "read",
                hint="name a folder for it",
            )
        for name in ("source", "key", "create", "max_wait", "by_shard"):
            if getattr(self, name):
                raise OptionError(
                    f"{name} is for masters in files, and this one is a table in a database",
                    hint="leave it out",
                )

    @property
    def build(self) -> Master:
        """How the master, one in files, is built."""
        assert isinstance(self.master, Path)
        return Master(
            self.master, self.source, self.key, self.shards, self.page_size,
            self.fill if self.source is not None else 1.0,
        )  # fmt: skip

    @property
    def needs_letters(self) -> bool:
        """Whether rows may be given up here."""
        return self.missing in ("dead", "retry")


KINDS: dict[str, set[str]] = {
    "enrich": {"how", "missing", "retry_for", "columns", "max_wait", "by_shard", "io", "options"},
    "surrogate_keys": {"surrogate", "keep_key", "unknown"},
    "duplicates": {"keep", "flag"},
}
"""Keys of a step that only its kind has."""

_DEFAULTS = {one.name: one.default if one.default is not MISSING else {} for one in fields(Step)}


@dataclass(frozen=True)
class Feed:
    """Changes to a master while the pipeline runs: a stream with a column of operations.

    `op` names that column (an empty text: all are updates), `order_by` a column whose numbers say
    in which order changes of a micro-batch happened. `skip_bad` leaves out and counts changes that
    make no sense.
    """

    master: Path
    format: str
    path: Path | None = None
    schema: str | None = None
    options: Scalars = field(default_factory=dict)
    op: str = "op"
    order_by: str | None = None
    checkpoint: Path | None = None
    every: str | None = None
    skip_bad: bool = False

    def check(self) -> None:
        """Raise for keys that do not go together."""
        _check_path(self.format, self.path)
        if self.every is not None:
            parse_milliseconds(self.every, what="every")

    @property
    def source(self) -> Source:
        """Where the changes come from."""
        return Source(self.format, self.path, self.schema, self.options)

    @property
    def checkpoint_path(self) -> Path:
        """The checkpoint's folder; beside the master unless given."""
        return self.checkpoint or self.master.with_name(self.master.name + ".feed")


@dataclass(frozen=True)
class DeadLetters:
    """Where rows go that were given up: files, a folder a micro-batch, with the column `reason`.

    Without it they are part of the results, with the reason in the column `column`.
    """

    path: Path | None = None
    format: str = "parquet"
    column: str = "reason"

    def check(self) -> None:
        """Raise for a format that is none of files."""
        if self.format not in FILE_FORMATS:
            raise unknown_name("format of dead letters", self.format, FILE_FORMATS)


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
    """All of it. Paths in a file are relative to the folder that it lies in.

    What is done is one join (`[master]` and `[join]`) or several steps (`[[step]]`).
    """

    source: Source
    sink: Sink
    master: Master | None = None
    join: Join | None = None
    step: tuple[Step, ...] = ()
    feed: tuple[Feed, ...] = ()
    dead_letters: DeadLetters | None = None
    trigger: Trigger = Trigger()
    spark: Spark = Spark()

    def check(self) -> None:
        """Raise for tables that do not go together, and where it reads what it writes."""
        if (self.master is None) != (self.join is None):
            lacks = "master" if self.master is None else "join"
            raise OptionError(f"there is no [{lacks}]", hint="[master] and [join] go together")
        if (self.join is None) == (not self.step):
            raise OptionError(
                "[join] and [[step]] exclude each other"
                if self.step
                else "nothing is done: there is neither [join] nor [[step]]",
                hint="see docs/pipelines.md for an example",
            )
        if self.dead_letters is not None and not self._gives_up():
            raise OptionError(
                "[dead_letters] without a step that gives rows up",
                hint='add missing = "dead" or "retry" to a step',
            )
        self._check_cycles()

    @property
    def steps(self) -> tuple[Step, ...]:
        """What is done, in order; a join is one step."""
        if self.join is None or self.master is None:
            return self.step
        join, master = self.join, self.master
        return (
            Step(
                master.path, join.on, source=master.source, key=master.key, shards=master.shards,
                page_size=master.page_size, fill=master.fill, how=join.how,
                algorithm=join.algorithm, memory=join.memory, columns=join.columns,
                max_wait=join.max_wait, tasks=join.tasks, by_shard=join.by_shard, io=join.io,
                options=join.options,
            ),
        )  # fmt: skip

    @property
    def letters(self) -> str | None:
        """The column of the results that holds why a row was given up."""
        if self.join is not None and self.join.dead_letters is not None:
            return self.join.dead_letters
        if self.dead_letters is not None:
            return self.dead_letters.column
        return "reason" if any(step.needs_letters for step in self.steps) else None

    def _gives_up(self) -> bool:
        """Whether rows may become dead letters."""
        if self.join is not None:
            return self.join.dead_letters is not None
        return any(step.needs_letters for step in self.steps)

    def _check_cycles(self) -> None:
        written = {"[sink] path": self.sink.path, "[sink] checkpoint": self.sink.checkpoint_path}
        if self.dead_letters is not None:
            written["[dead_letters] path"] = self.dead_letters.path
        read = {"[source] path": self.source.path}
        for number, feed in enumerate(self.feed, 1):
            read[f"[[feed]] {number} path"] = feed.path
        for number, step in enumerate(self.steps, 1):
            read[f"step {number} source"] = step.source
            if isinstance(step.master, Path):
                read[f"step {number} master"] = step.master
        for what, path in written.items():
            for whence, other in read.items():
                if path is not None and other is not None and _overlap(path, other):
                    raise OptionError(
                        f"a cycle: {what} ({str(path)!r}) is what {whence} reads ({str(other)!r})",
                        hint="write to another folder",
                    )


def _overlap(path: Path, other: Path) -> bool:
    return path == other or path in other.parents or other in path.parents


_ARROW_TYPES = {
    "string": pa.string(), "text": pa.string(), "long": pa.int64(), "bigint": pa.int64(),
    "int64": pa.int64(), "int": pa.int32(), "integer": pa.int32(), "int32": pa.int32(),
    "short": pa.int16(), "smallint": pa.int16(), "byte": pa.int8(), "tinyint": pa.int8(),
    "double": pa.float64(), "float": pa.float32(), "real": pa.float32(), "boolean": pa.bool_(),
    "date": pa.date32(), "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"), "binary": pa.binary(),
}  # fmt: skip


def arrow_type(name: str, where: str) -> pa.DataType:
    """The type of this name, as Spark's schemas write it."""
    found = _ARROW_TYPES.get(name.strip().lower())
    if found is None:
        raise unknown_name(f"type in {where}", name, _ARROW_TYPES)
    return found


def arrow_columns(text: str) -> pa.Schema | None:
    """The schema of `"order_id long, amount double"`; None where a type is not a plain one."""
    columns = []
    for part in text.split(","):
        words = part.replace(":", " ").split()
        if len(words) < 2 or words[1].lower() not in _ARROW_TYPES:
            return None
        columns.append(pa.field(words[0].strip("`"), _ARROW_TYPES[words[1].lower()]))
    return pa.schema(columns)


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
    pipeline = Pipeline(
        **{
            one.name: _tables(hints[one.name], document[one.name], one.name, folder, name)
            for one in fields(Pipeline)
            if _is_there(one.name, document, one.default is MISSING, name)
        }
    )
    try:
        pipeline.check()
    except OptionError as error:
        raise OptionError(f"{name}: {error.message}", hint=error.hint) from error
    return pipeline


def _tables(hint: Any, value: Any, where: str, folder: Path, name: str) -> Any:
    """A table as a record, or several of one name as several."""
    options = [one for one in typing.get_args(hint) if one is not types.NoneType]
    if typing.get_origin(hint) is tuple:
        if not isinstance(value, list):
            raise OptionError(f"{where} in {name} is not a list", hint=f"write [[{where}]]")
        return tuple(
            _record(options[0], _a_table(one, where, name), f"{where} {number}", folder)
            for number, one in enumerate(value, 1)
        )
    kind = options[0] if isinstance(hint, types.UnionType) else hint
    return _record(kind, _a_table(value, where, name), where, folder)


def _a_table(value: Any, where: str, name: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise OptionError(f"{where} in {name} is not a table", hint=f"write [{where}]")
    return value


def _is_there(table: str, document: Mapping[str, Any], required: bool, name: str) -> bool:
    if table in document:
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
    except (OptionError, UnknownNameError) as error:
        raise type(error)(f"[{where}] {error.message}", hint=error.hint) from error
    return record


def _value(hint: Any, value: Any, where: str, folder: Path) -> Any:
    """The value as the type asks for it."""
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    for option in options:
        origin = typing.get_origin(option) or option
        if origin is Path and isinstance(value, str) and value:
            if is_database(value):
                raise OptionError(
                    f"{where} is the address of a database, and no table is named",
                    hint='write { uri = "…", table = "…", key = "…" }, as in docs/databases.md',
                )
            return folder / value
        if option is Table and isinstance(value, dict):
            return _record(Table, value, where.strip("[]").replace("] ", "."), folder)
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
    Table: "a table with uri, table and key",
}


def _check_path(format: str, path: Path | None) -> None:
    if format in FILE_FORMATS and path is None:
        raise OptionError(f"format = {format!r} needs path", hint="give the folder of the files")
    if format in (POSTGRES, "rate", "console", "noop") and path is not None:
        raise OptionError(f"format = {format!r} has no path", hint="leave path out")
