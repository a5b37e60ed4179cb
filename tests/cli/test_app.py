"""The command as a whole: help, version, errors, the installed entry."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

import semistream
from semistream.cli import main, render
from semistream.joins.registry import DEFAULT, JOINS

if TYPE_CHECKING:
    from tests.cli.conftest import Run


def leaves(command: click.Command, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    if not isinstance(command, click.Group):
        return [path]
    return [leaf for name, sub in command.commands.items() for leaf in leaves(sub, (*path, name))]


COMMANDS = leaves(main)
GROUPS = [(), ("master",), ("bench",), ("bench", "run")]


@pytest.mark.parametrize("command", GROUPS + COMMANDS, ids=" ".join)
def test_every_command_has_help(run: Run, command: tuple[str, ...]) -> None:
    shown = run(*command, "--help")
    assert shown.code == 0
    assert "Usage: " in shown.out


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_json(run: Run, command: tuple[str, ...]) -> None:
    assert "--json" in run(*command, "--help").out


def test_version(run: Run) -> None:
    assert run("--version").out == f"semistream, version {semistream.__version__}\n"


@pytest.mark.parametrize("arguments", [["fly"], ["master", "fly"], ["demo", "--fly"]])
def test_unknown_commands_and_options_are_usage_errors(run: Run, arguments: list[str]) -> None:
    failed = run(*arguments)
    assert failed.code == 2
    assert failed.out == ""
    assert "fly" in failed.err


def test_algorithms_lists_what_is_registered(run: Run) -> None:
    listed = run("algorithms", "--json").json
    assert [one["name"] for one in listed] == list(JOINS)
    assert [one["name"] for one in listed if one["default"]] == [DEFAULT]
    assert all(one["idea"] and one["paper"] for one in listed)
    shown = run("algorithms")
    for name, kind in JOINS.items():
        assert name in shown.out
        assert kind.traits.idea in shown.out


def test_ctrl_c_ends_without_a_traceback(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(render, "document", interrupt)
    ended = run("algorithms", "--json")
    assert (ended.code, ended.out, ended.err) == (130, "", "error: interrupted\n")


def test_errors_of_the_system_are_messages(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise PermissionError(13, "Permission denied", "somewhere")

    monkeypatch.setattr(render, "document", refuse)
    ended = run("algorithms", "--json")
    assert (ended.code, ended.err) == (2, "error: 'somewhere': Permission denied\n")


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (999, "999"), (1500, "1.50 k"), (2_310_000, "2.31 M"), (4e9, "4.00 G")],
)
def test_counts_for_people(number: float, text: str) -> None:
    assert render.count(number) == text


def test_long_values_are_cut() -> None:
    assert render.cell(None) == ""
    assert render.cell(b"\x01\xff") == "01ff"
    assert render.cell("x" * 100) == "x" * 39 + "…"


def test_the_entry_of_the_package_is_this_command() -> None:
    assert EntryPoint("semistream", "semistream.cli:main", "console_scripts").load() is main


def installed() -> list[str]:
    """The installed command; where only the sources are on the path, what it would run."""
    script = Path(sys.executable).with_name("semistream")
    if script.exists():
        return [str(script)]
    return [sys.executable, "-c", "from semistream.cli import main; main(prog_name='semistream')"]


def test_the_command_in_a_process_of_its_own(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "NO_COLOR": "1"}

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*installed(), *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            env=environment,
            cwd=tmp_path,
        )

    listed = call("algorithms", "--json")
    assert listed.returncode == 0
    assert listed.stderr == ""
    assert [one["name"] for one in json.loads(listed.stdout)] == list(JOINS)
    assert "\x1b" not in call("algorithms").stdout
    failed = call("master", "info", "nowhere")
    assert failed.returncode == 2
    assert failed.stdout == ""
    assert failed.stderr.startswith("error: there is no master at 'nowhere'\nhint: ")
    assert "Traceback" not in failed.stderr
