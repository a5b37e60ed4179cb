"""`semistream master apply` and `compact`: a master that changes."""

from __future__ import annotations

from pathlib import Path

import click

from semistream.cli import render
from semistream.cli.master.info import described, show
from semistream.cli.options import json_option
from semistream.store.apply import (
    INSERTS,
    KEPT_VERSIONS,
    Applied,
    apply_changes,
    compact_master,
)
from semistream.store.file import open_master

_keep = click.option(
    "--keep",
    type=click.IntRange(min=0),
    default=KEPT_VERSIONS,
    show_default=True,
    help="Earlier versions that stay.",
)


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.argument("changes", nargs=-1, required=True)
@click.option("--op", default="op", show_default=True, help="Column that says what happened.")
@click.option("--no-op", is_flag=True, help="All changes are updates; there is no such column.")
@click.option(
    "--sequence",
    metavar="COLUMN",
    help="Numbers that never fall: what is known is not applied again.",
)
@click.option(
    "--inserts",
    type=click.Choice(INSERTS),
    help="What an insert does to rows of its key. [default: replace where keys are unique]",
)
@click.option(
    "--skip-bad",
    is_flag=True,
    help="Leave out changes with an unknown operation or no key, and count them.",
)
@click.option("--memory", default="1GB", show_default=True, help="Memory for the changes.")
@click.option("--no-compaction", is_flag=True, help="Leave pages that nobody needs in the files.")
@_keep
@json_option
def apply(
    path: Path,
    changes: tuple[str, ...],
    op: str,
    no_op: bool,
    sequence: str | None,
    inserts: str | None,
    skip_bad: bool,
    memory: str,
    no_compaction: bool,
    keep: int,
    as_json: bool,
) -> None:
    """Apply CHANGES to the master at PATH, all at once, as a new version.

    CHANGES are files with the master's columns and one that says insert, update or delete. Joins
    that run go on with the version they have; streams take the new one with the next micro-batch.
    """
    done = apply_changes(
        path,
        changes[0] if len(changes) == 1 else list(changes),
        op=None if no_op else op,
        sequence=sequence,
        inserts=inserts,
        bad="skip" if skip_bad else "raise",
        memory=memory,
        keep=keep,
        compaction=not no_compaction,
    )
    if as_json:
        render.document({"path": str(path), **done.to_dict()})
    else:
        render.facts(str(path), _facts(done))


def _facts(done: Applied) -> list[tuple[str, render.Cell]]:
    counts = done.changes
    left_out = [f"{rows:,} ({reason})" for reason, rows in counts.rejected.items()]
    if counts.applied_before:
        left_out.append(f"{counts.applied_before:,} (applied before)")
    if counts.before_images:
        left_out.append(f"{counts.before_images:,} (rows before an update)")
    return [
        ("version", f"{done.version}"),
        (
            "changes",
            f"{counts.inserts:,} inserts, {counts.updates:,} updates, {counts.deletes:,} deletes",
        ),
        ("left out", ", ".join(left_out) or "none"),
        ("rows", f"{done.rows:,}: {done.rows_removed:,} went, {done.rows_added:,} came"),
        ("pages", f"{done.pages:,}, of which {done.pages_written:,} were written"),
        ("compacted", "yes" if done.compacted else "no"),
    ]


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@_keep
@json_option
def compact(path: Path, keep: int, as_json: bool) -> None:
    """Write all rows of the master at PATH anew, in order, as a new version.

    Changes leave pages behind that nobody needs, and pages out of order.
    """
    compact_master(path, keep=keep)
    with open_master(path) as master:
        facts = described(master)
    if as_json:
        render.document(facts)
    else:
        show(facts)
