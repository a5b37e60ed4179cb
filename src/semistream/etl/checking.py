"""`semistream run --check`: everything about a pipeline that can be known without running it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.json

from semistream.core.budget import format_bytes
from semistream.core.errors import OptionError, SemiStreamError, SourceError
from semistream.etl.duplicates import SeenKeys, new_seen
from semistream.etl.pipeline import FILE_FORMATS, Feed, Pipeline, Source, Step, arrow_columns
from semistream.etl.pipeline import arrow_type as type_named
from semistream.etl.surrogate import SurrogateKeys, new_lookup
from semistream.joins.registry import make_join
from semistream.store.changes import ChangeReader
from semistream.store.file import FileMaster, open_master
from semistream.store.sources import open_source
from semistream.store.sql import Table, open_any


@dataclass(frozen=True)
class PlanLine:
    """A line of the resolved plan: what it is about, and what will happen."""

    what: str
    plan: str


def check_pipeline(pipeline: Pipeline, folder: Path) -> Iterator[PlanLine]:
    """The resolved plan, line by line; what cannot work raises, named by its table.

    Masters that are to be built and are not there yet are not built: of them only the source is
    checked. Empty lookups that are to be made are made in `folder`, to be thrown away.
    """
    schema = stream_schema(pipeline.source)
    shown = "columns are known when it starts" if schema is None else _listed(schema)
    source = pipeline.source
    yield PlanLine("source", f"{source.format} {source.path or ''}".rstrip() + f" ({shown})")
    for number, feed in enumerate(pipeline.feed, 1):
        with _named(f"[[feed]] {number}"):
            yield PlanLine("feed", _feed(feed, pipeline))
    for number, step in enumerate(pipeline.steps, 1):
        name = "[join]" if pipeline.join is not None else f"[[step]] {number}"
        with _named(name):
            line, schema = _step(step, schema, folder / str(number), pipeline.letters)
        yield PlanLine("join" if step.kind == "enrich" else step.kind.replace("_", " "), line)
    letters = pipeline.dead_letters
    if letters is not None and letters.path is not None:
        yield PlanLine("dead letters", f"{letters.format} {letters.path}")
    elif pipeline.letters is not None:
        yield PlanLine("dead letters", f"among the results, with the reason in {pipeline.letters}")
    sink = pipeline.sink
    yield PlanLine("sink", f"{sink.format} {sink.path or sink.table or ''}".rstrip())
    if schema is not None:
        yield PlanLine("results", _listed(schema))
    trigger = pipeline.trigger
    when = "until all is joined" if trigger.available_now else f"every {trigger.every or 'moment'}"
    yield PlanLine("trigger", when)
    yield PlanLine("spark", pipeline.spark.master)


class _named:
    """Errors in here say which table they are about."""

    def __init__(self, where: str) -> None:
        self.where = where

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, SemiStreamError):
            raise type(error)(f"{self.where}: {error.message}", hint=error.hint) from error


def stream_schema(source: Source) -> pa.Schema | None:
    """The columns of a source, where they can be known without Spark."""
    if source.format in FILE_FORMATS:
        assert source.path is not None
        if not source.path.exists():
            raise SourceError(
                f"[source] path {str(source.path)!r} does not exist",
                hint="create the folder; files that are moved into it are the stream",
            )
    if source.schema is not None:
        return arrow_columns(source.schema)
    if source.format not in FILE_FORMATS or source.path is None:
        return None
    files = sorted(one for one in source.path.glob("*") if one.name[:1] not in "._")
    if not files:
        raise SourceError(
            f"there are no {source.format} files in {str(source.path)!r} to take the schema from",
            hint='add schema = "order_id long, …" to [source], or a first file',
        )
    try:
        if source.format == "json":
            return pa.json.read_json(files[0]).schema
        if source.format in ("parquet", "orc"):
            return pads.dataset([str(files[0])], format=source.format).schema
    except pa.ArrowException as error:
        raise SourceError(
            f"{str(files[0])!r} is not {source.format}: {str(error).splitlines()[0]}",
            hint="change the format, or remove the file",
        ) from error
    return None


def _feed(feed: Feed, pipeline: Pipeline) -> str:
    masters = {step.master: step for step in pipeline.steps}
    if feed.master not in masters:
        raise OptionError(
            f"no step reads the master {str(feed.master)!r}",
            hint=f"the steps read {', '.join(str(path) for path in masters)}",
        )
    schema = stream_schema(feed.source)
    if schema is not None and feed.master.exists():
        with open_master(feed.master) as master:
            from semistream.store.apply import plan_of

            plan = plan_of(master.manifest)
            ChangeReader(schema.empty_table(), plan, op=feed.op or None)
    return f"{feed.format} {feed.path or ''}".rstrip() + f" changes {feed.master.name}"


def _step(
    step: Step, schema: pa.Schema | None, folder: Path, letters: str | None
) -> tuple[str, pa.Schema | None]:
    master = _master(step, folder)
    if master is None:
        opened = open_source(str(step.source))
        for name in step.key:
            if name not in opened.schema.names:
                raise OptionError(
                    f"{str(step.source)!r} has no column {name!r} for the key",
                    hint=f"it has {', '.join(opened.schema.names)}",
                )
        return f"{_how(step)} {step.master.name}, built from {step.source}", None
    with master:
        size = f"{master.rows:,} rows, {format_bytes(master.data_bytes)}"
        line = f"{_how(step)} {step.master.name} ({size}), memory {step.memory}"
        if schema is None:
            return line, None
        on = list(step.on) if isinstance(step.on, tuple) else step.on
        if step.kind == "surrogate_keys":
            keys = SurrogateKeys(
                schema, master, on, key=step.surrogate, keep=step.keep_key, memory=step.memory,
                algorithm=step.algorithm,
            )  # fmt: skip
            keys.close()
            return line, keys.output_schema
        if step.kind == "duplicates":
            seen = SeenKeys(
                schema, master, on, keep=step.keep, flag=step.flag, memory=step.memory,
                algorithm=step.algorithm,
            )  # fmt: skip
            seen.close()
            return line, seen.output_schema
        how, options = step.how, dict[str, Any](step.options)
        if step.missing is not None:
            how = "inner" if step.missing == "drop" else "left"
        with make_join(
            step.algorithm, master, on=on, schema=schema, how=how, memory=step.memory,
            columns=step.columns, **options,
        ) as operator:  # fmt: skip
            shares = operator.plan.shares.items()
            divided = ", ".join(f"{name} {format_bytes(size)}" for name, size in shares if size)
            output = operator.output_schema
        if letters is not None and letters not in output.names:
            output = output.append(pa.field(letters, pa.string()))
        return f"{line}: {divided}", output


def _master(step: Step, folder: Path) -> FileMaster | None:
    """The master of a step; None if it is to be built."""
    if (
        isinstance(step.master, Table)
        or step.master.exists()
        or (step.source is None and not step.create)
    ):
        return open_any(step.master, io=step.io)
    if not step.create:
        return None
    columns = {name: type_named(type_, name) for name, type_ in step.create.items()}
    if step.kind == "duplicates":
        new_seen(folder, columns)
    else:
        new_lookup(folder, columns, key=step.surrogate)
    return open_master(folder)


def _how(step: Step) -> str:
    if step.kind != "enrich":
        return "by"
    if step.missing is None:
        how = step.how
    elif step.missing == "retry":
        how = f"unknown keys wait up to {step.retry_for}:"
    else:
        how = {"null": "unknown keys kept:", "drop": "unknown keys dropped:"}.get(
            step.missing, "unknown keys given up:"
        )
    wait = f", rows wait up to {step.max_wait}" if step.max_wait else ""
    return f"{how} by {step.algorithm}{wait} with"


def _listed(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
