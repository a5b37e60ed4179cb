"""The group of all commands, and what becomes of their errors."""

from __future__ import annotations

import errno
from typing import IO, Any

import click

import semistream
from semistream.cli import render
from semistream.cli.algorithms import algorithms
from semistream.cli.bench import bench
from semistream.cli.dashboard import dashboard
from semistream.cli.demo import demo
from semistream.cli.master import master
from semistream.cli.run import run
from semistream.cli.tune import tune
from semistream.cli.workload import workload
from semistream.core.errors import SemiStreamError


class Failed(click.ClickException):
    """An error that is shown as a message with a hint, never as a traceback."""

    exit_code = 2

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint

    def show(self, file: IO[Any] | None = None) -> None:
        render.error(self.message, self.hint)


class Interrupted(Failed):
    """Ctrl-C; the code is the one that shells use for it."""

    exit_code = 130


class Commands(click.Group):
    """A group whose commands may raise what the package raises."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except SemiStreamError as error:
            raise Failed(error.message, error.hint) from error
        except KeyboardInterrupt:
            raise Interrupted("interrupted") from None
        except OSError as error:
            if error.errno == errno.EPIPE:  # whoever read the output has gone: click ends quietly
                raise
            where = f"{str(error.filename)!r}: " if error.filename else ""
            raise Failed(f"{where}{error.strerror or error}") from error


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(semistream.__version__, prog_name="semistream")
def main() -> None:
    """Join a stream with a master table on disk that is larger than memory."""


for command in (demo, run, dashboard, master, algorithms, tune, workload, bench):
    main.add_command(command)
