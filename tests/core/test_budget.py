"""Sizes, plans and the account of a join's memory."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semistream.core.budget import MemoryBudget, MemoryPlan, format_bytes, parse_bytes
from semistream.core.errors import BudgetError, OptionError


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (1, 1),
        (67108864, 67108864),
        (2.5e3, 2500),
        ("123", 123),
        ("64MB", 64_000_000),
        ("64 MB", 64_000_000),
        ("  64mb ", 64_000_000),
        ("64MiB", 64 * 2**20),
        ("1kB", 1000),
        ("1KiB", 1024),
        ("0.5GB", 500_000_000),
        ("2gib", 2 * 2**30),
        ("1TB", 10**12),
        ("1TiB", 2**40),
        ("7b", 7),
        ("5%", 50),
        ("0.5 %", 5),
        ("150%", 1500),
    ],
)
def test_sizes(size: Any, expected: int) -> None:
    assert parse_bytes(size, of=1000) == expected


@pytest.mark.parametrize(
    "size",
    [
        "",
        " ",
        "MB",
        "-5MB",
        "5 5MB",
        "5MB!",
        "1e6",
        "1,5MB",
        "five",
        "64XB",
        "64 M B",
        "%",
        "0",
        "0%",
        "0.0MB",
        "0.4",
        0,
        -1,
        0.2,
        None,
        True,
        False,
        [64],
        b"64MB",
        math.nan,
        math.inf,
        "9" * 400,
    ],
)
def test_nonsense_is_an_option_error_with_a_hint(size: Any) -> None:
    with pytest.raises(OptionError, match="chunk") as caught:
        parse_bytes(size, of=1000, what="chunk")
    assert caught.value.hint


def test_a_share_needs_something_to_be_a_share_of() -> None:
    with pytest.raises(OptionError, match="no master"):
        parse_bytes("5%")


def test_an_unknown_unit_is_named() -> None:
    with pytest.raises(OptionError, match="'xb'"):
        parse_bytes("64XB")


@given(st.integers(1, 2**53))
def test_whole_numbers_stay_what_they_are(size: int) -> None:
    assert parse_bytes(size) == size
    assert parse_bytes(str(size)) == size


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (64_000_000, "64.0 MB"),
        (1.25e9, "1.2 GB"),
        (3e12, "3.0 TB"),
        (5e15, "5000.0 TB"),
    ],
)
def test_sizes_for_people(size: float, text: str) -> None:
    assert format_bytes(size) == text


def test_a_plan_sums_to_the_budget() -> None:
    plan = MemoryPlan(100, {"index": 30, "pool": 70}, reason="half")
    assert plan["pool"] == 70
    for shares in ({"index": 30, "pool": 71}, {"index": 30}, {}):
        with pytest.raises(OptionError, match="sum to"):
            MemoryPlan(100, shares)


def test_a_charge_beyond_the_limit_is_refused_and_changes_nothing() -> None:
    budget = MemoryBudget(100, owner="sweepjoin")
    budget.set("pool", 60)
    with pytest.raises(
        BudgetError, match=r"sweepjoin: cache asks for 41 B more and 40 B"
    ) as caught:
        budget.set("cache", 41)
    assert "raise memory" in caught.value.hint
    assert budget.in_use() == {"pool": 60}
    assert (budget.used_bytes, budget.peak_bytes, budget.free_bytes) == (60, 60, 40)
    budget.set("cache", 40)
    assert budget.free_bytes == 0
    with pytest.raises(BudgetError):
        budget.set("pool", 61)
    assert dict(budget) == {"pool": 60, "cache": 40}


def test_what_is_given_back_can_be_charged_again() -> None:
    budget = MemoryBudget(100)
    budget.set("pool", 90)
    budget.set("pool", 10)
    assert (budget.used_bytes, budget.peak_bytes) == (10, 90)
    budget.set("cache", 85)
    assert (budget.used_bytes, budget.peak_bytes) == (95, 95)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 60))))
def test_the_account_is_always_right(charges: list[tuple[str, int]]) -> None:
    budget = MemoryBudget(100)
    held: dict[str, int] = {}
    peak = 0
    for name, size in charges:
        wanted = {**held, name: size}
        if sum(wanted.values()) > 100:
            with pytest.raises(BudgetError):
                budget.set(name, size)
        else:
            budget.set(name, size)
            held = wanted
        peak = max(peak, sum(held.values()))
        assert budget.used_bytes == sum(held.values()) <= 100
        assert budget.in_use() == held
        assert budget.peak_bytes == peak
