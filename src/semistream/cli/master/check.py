"""`semistream master check`: are all pages what was written?"""

from __future__ import annotations

from pathlib import Path

import click

from semistream.cli import render
from semistream.cli.options import json_option
from semistream.core.errors import StoreError
from semistream.core.progress import TerminalProgress
from semistream.store.file import FileMaster, open_master
from semistream.store.manifest import MANIFEST

MOST_LISTED = 20


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@json_option
@click.pass_context
def check(ctx: click.Context, path: Path, as_json: bool) -> None:
    """Read every page of the master at PATH and compare it with its checksum.

    Ends with code 1 if anything is damaged, and names the pages.
    """
    problem, pages = "", 0
    bad: list[int] = []
    is_master = (path / MANIFEST).is_file()
    try:
        with open_master(path) as master:
            pages = master.pages
            bad = _bad_pages(master)
    except StoreError as error:
        # Without a manifest there is nothing to check; with one, it promises what is not there.
        if not is_master:
            raise
        problem = error.message
    if as_json:
        document = {"path": str(path), "ok": not bad and not problem, "pages": pages}
        render.document({**document, "bad_pages": bad, "problem": problem or None})
    elif problem:
        render.failure(f"{problem}.")
    elif bad:
        listed = ", ".join(str(page) for page in bad[:MOST_LISTED])
        more = f" and {len(bad) - MOST_LISTED} more" if len(bad) > MOST_LISTED else ""
        render.failure(f"{len(bad)} of {pages:,} pages are damaged: {listed}{more}.")
    else:
        render.line(f"{pages:,} pages checked, all as they were written.")
    ctx.exit(1 if bad or problem else 0)


def _bad_pages(master: FileMaster) -> list[int]:
    bad = []
    with TerminalProgress() as report:
        for done, page in master.bad_pages():
            if page is not None:
                bad.append(page)
            report("checking pages", done, master.pages)
    return bad
