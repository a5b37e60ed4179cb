"""`semistream workload`: the papers' data as files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import click
import pyarrow as pa
import pyarrow.parquet as pq

from semistream.cli import render
from semistream.cli.options import json_option
from semistream.core.budget import format_bytes
from semistream.core.progress import TerminalProgress
from semistream.workloads import (
    WORKLOADS,
    Placement,
    make_workload,
    workload_idea,
    workload_options,
)

STREAM_ROWS = 1_000_000


@click.command()
@click.argument("name", required=False)
@click.option("--list", "listed", is_flag=True, help="List the workloads and their options.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The Parquet file to write.",
)
@click.option(
    "--side",
    type=click.Choice(["stream", "master"]),
    default="stream",
    show_default=True,
    help="Which of the two tables.",
)
@click.option(
    "--rows",
    type=click.IntRange(min=0),
    help="Rows of that side. [default: a million of the stream, --master-rows of the master]",
)
@click.option("--master-rows", type=click.IntRange(min=1), help="Rows of the master.")
@click.option("--skew", type=click.FloatRange(min=0), help="Zipf exponent of the stream's keys.")
@click.option("--master-skew", type=click.FloatRange(min=0), help="The same of the master's keys.")
@click.option("--placement", type=click.Choice(get_args(Placement)), help="Where the hot keys are.")
@click.option("--values", type=click.IntRange(min=1), help="Distinct keys to draw from.")
@click.option("--k", type=click.IntRange(min=1), help="Master rows per key.")
@click.option("--row-bytes", type=click.IntRange(min=24), help="Bytes of a row.")
@click.option("--rate", type=float, help="Rows per second on average.")
@click.option("--pareto", type=float, help="Tail exponent of the times between bursts.")
@click.option(
    "--reports",
    multiple=True,
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="A file of NDP-026B; may be given several times.",
)
@click.option("--seed", type=int, help="Another seed makes other data of the same kind.")
@json_option
def workload(
    name: str | None,
    listed: bool,
    out: Path | None,
    side: str,
    rows: int | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Write one side of a workload of the papers to a Parquet file.

    NAME is one of `semistream workload --list`. The same options always give the same rows. The
    stream and the master of one workload are two calls with the same options but --side.
    """
    if listed:
        _list(as_json)
        return
    if name is None or out is None:
        raise click.UsageError("give a NAME and --out FILE, or --list")
    options = {option: value for option, value in given.items() if value not in (None, ())}
    if side == "master" and rows is not None:
        options["master_rows"] = rows
    made = make_workload(name, **options)
    wanted = STREAM_ROWS if rows is None else rows
    reader = made.master() if side == "master" else made.stream(wanted)
    total = made.master_rows or None if side == "master" else wanted
    with TerminalProgress() as report:
        written = _write(out, reader, lambda done: report("rows", done, total))
    key = made.master_key if side == "master" else made.stream_key
    if as_json:
        render.document(
            {
                "workload": name,
                "side": side,
                "description": made.description,
                "key": key,
                "rows": written,
                "bytes": out.stat().st_size,
                "columns": {field.name: str(field.type) for field in reader.schema},
                "options": {**workload_options(name), **options},
                "file": str(out),
            }
        )
        return
    render.line(made.description)
    render.line(f"{out}: {side}, {written:,} rows, {format_bytes(out.stat().st_size)}, key {key}")


def _write(out: Path, reader: pa.RecordBatchReader, told: Any) -> int:
    rows = 0
    # Beside the target first: a file of that name is always a whole one.
    beside = out.with_name(out.name + ".part")
    try:
        with pq.ParquetWriter(beside, reader.schema) as writer:
            for batch in _sizeable(reader):
                writer.write_batch(batch)
                rows += batch.num_rows
                told(rows)
        beside.replace(out)
    finally:
        beside.unlink(missing_ok=True)
    return rows


def _sizeable(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    """Batches worth a row group each, whatever comes."""
    held: list[pa.RecordBatch] = []
    for batch in reader:
        held.append(batch)
        if sum(part.num_rows for part in held) >= 1 << 16:
            yield pa.concat_batches(held)
            held.clear()
    if held:
        yield pa.concat_batches(held)


def _list(as_json: bool) -> None:
    if as_json:
        render.document(
            [
                {"name": name, "idea": workload_idea(name), "options": workload_options(name)}
                for name in WORKLOADS
            ]
        )
        return
    rows = [(name, workload_idea(name), _flags(name)) for name in WORKLOADS]
    render.table(("name", "idea", "options"), rows)


def _flags(name: str) -> str:
    return " ".join("--" + option.replace("_", "-") for option in workload_options(name))
