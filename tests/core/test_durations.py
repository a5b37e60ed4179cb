"""Lengths of time as people write them."""

from __future__ import annotations

import pytest

from semistream.core.durations import parse_milliseconds
from semistream.core.errors import OptionError


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("10 seconds", 10_000),
        ("500 ms", 500),
        ("500ms", 500),
        ("1 millisecond", 1),
        ("5s", 5000),
        ("0.5 s", 500),
        ("2 m", 120_000),
        ("3 mins", 180_000),
        ("1h", 3_600_000),
    ],
)
def test_durations(text: str, milliseconds: int) -> None:
    assert parse_milliseconds(text, what="max_wait") == milliseconds


@pytest.mark.parametrize("text", ["", "10", "soon", "10 parsecs", "-1 s", 10])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(OptionError, match=r"max_wait=.* is not a duration"):
        parse_milliseconds(text, what="max_wait")
