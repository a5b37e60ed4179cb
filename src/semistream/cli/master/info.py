"""`semistream master info`: what a master holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from semistream.cli import render
from semistream.cli.options import json_option
from semistream.core.budget import format_bytes
from semistream.store.file import FileMaster, open_master


def described(master: FileMaster) -> dict[str, Any]:
    """What the manifest of a master says, as a record for JSON."""
    manifest = master.manifest
    return {
        "path": str(master.path),
        "format": manifest.format,
        "version": manifest.version,
        "key": list(manifest.key),
        "key64": "the key itself" if master.spec.is_number else "hash of the key",
        "frequency": manifest.frequency or None,
        "rows": manifest.rows,
        "keys": manifest.keys,
        "most_rows_per_key": manifest.longest_run,
        "null_keys": manifest.null_keys,
        "rejected_rows": manifest.rejected_rows,
        "page_bytes": manifest.page_bytes,
        "pages": manifest.pages,
        "most_rows_per_page": manifest.most_rows_per_page,
        "record_bytes": manifest.record_bytes,
        "fill": manifest.fill,
        "data_bytes": manifest.data_bytes,
        "index_bytes": master.index_bytes,
        "shards": [
            {
                "file": shard.file,
                "pages": shard.pages,
                "rows": shard.rows,
                "unused_pages": shard.places - shard.pages,
            }
            for shard in manifest.shards
        ],
        "columns": [
            {"name": column.name, "type": str(column.type), "nullable": column.nullable}
            for column in master.schema
        ],
    }


def show(facts: dict[str, Any]) -> None:
    """The same for people."""
    left_out = []
    if facts["null_keys"]:
        left_out.append(f"{facts['null_keys']:,} rows with a null in the key")
    if facts["rejected_rows"]:
        left_out.append(f"{facts['rejected_rows']:,} rows that did not parse")
    shards = facts["shards"]
    order = f"ordered by {facts['key64']}"
    if facts["frequency"]:
        order = f"ordered by classes of {facts['frequency']}, then by {facts['key64']}"
    pairs = [
        ("key", f"{', '.join(facts['key'])} ({order})"),
        ("rows", f"{facts['rows']:,}"),
        ("keys", f"{facts['keys']:,}, at most {facts['most_rows_per_key']:,} rows each"),
        ("left out", ", ".join(left_out) or "none"),
        ("pages", f"{facts['pages']:,} of {facts['page_bytes']:,} bytes"),
        ("size", format_bytes(facts["data_bytes"])),
        ("index in memory", format_bytes(facts["index_bytes"])),
        ("page files", f"{len(shards)}"),
        ("unused", f"{sum(shard['unused_pages'] for shard in shards):,} pages of earlier versions"),
        ("version", f"{facts['version']} (format {facts['format']})"),
    ]
    render.facts(facts["path"], pairs)
    columns = [
        (column["name"], column["type"], "" if column["nullable"] else "not null")
        for column in facts["columns"]
    ]
    render.table(("column", "type", ""), columns)


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@json_option
def info(path: Path, as_json: bool) -> None:
    """Show what the master at PATH holds."""
    with open_master(path) as master:
        facts = described(master)
    if as_json:
        render.document(facts)
    else:
        show(facts)
