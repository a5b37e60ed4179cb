"""`semistream master …`: build a master, change it, look into it, check it."""

from __future__ import annotations

import click

from semistream.cli.master.apply import apply, compact
from semistream.cli.master.build import build
from semistream.cli.master.check import check
from semistream.cli.master.info import info
from semistream.cli.master.page import page
from semistream.cli.master.pages import pages


@click.group()
def master() -> None:
    """Build a master, change it, look into it, check it."""


for command in (build, apply, compact, info, check, pages, page):
    master.add_command(command)
