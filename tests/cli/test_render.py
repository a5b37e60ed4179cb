"""What is printed where: on terminals, in pipes, with and without colour."""

from __future__ import annotations

import io
import json
import sys

import pytest

from semistream.cli import render


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def use_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Make standard error a terminal; from inside a test, since pytest sets it before each."""
    made = Terminal()
    monkeypatch.setattr(sys, "stderr", made)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return made


def test_live_facts_are_drawn_in_place_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = use_terminal(monkeypatch)
    with render.LiveFacts("What happens") as live:
        live.show([("rows", "1")])
        live.show([("rows", "2")])
        assert live.every_s < 1
    shown = terminal.getvalue()
    assert shown.count("What happens") >= 2
    assert "\x1b[1A" in shown  # one line up again, to draw over what was there


def test_live_facts_are_lines_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    with render.LiveFacts("What happens") as live:
        live.show([("rows", "1"), ("hits", "50%")])
        live.show([("rows", "2"), ("hits", "60%")])
        assert live.every_s == 1
    shown = capsys.readouterr()
    assert shown.err == "rows 1, hits 50%\nrows 2, hits 60%\n"
    assert shown.out == ""


def test_errors_have_colour_on_a_terminal_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = use_terminal(monkeypatch)
    render.error("it broke", "mend it")
    assert "\x1b[1;31merror: \x1b[0m" in terminal.getvalue()
    terminal.truncate(0)
    monkeypatch.setenv("NO_COLOR", "1")
    render.error("it broke", "mend it")
    assert "31m" not in terminal.getvalue()


def test_content_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    render.table(("a [b]", "c"), [("[red]x[/red]", ":smile:")], [("12", "y" * 150)], right={"c"})
    render.line("[bold]")
    shown = capsys.readouterr().out
    for text in ("a [b]", "[red]x[/red]", ":smile:", "y" * 150, "[bold]"):
        assert text in shown
    assert "\x1b" not in shown


def test_documents_are_strict_json(capsys: pytest.CaptureFixture[str]) -> None:
    render.document({"nan": float("nan"), "bytes": b"\x01", "tuple": (1, None), 5: "ü"})
    text = capsys.readouterr().out
    assert json.loads(text) == {"nan": None, "bytes": "01", "tuple": [1, None], "5": "ü"}
