"""Every registered join passes every check of `semistream.checks`."""

from __future__ import annotations

import pytest

from semistream.checks import SKIPPED, Check, Workspace, all_checks, named
from semistream.joins.registry import JOINS

CHECKS = {check.__name__: check for check in all_checks()}


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("join", JOINS)
def test_conformance(join: str, check: str, workspace: Workspace) -> None:
    if (join, check) in SKIPPED:
        pytest.skip(SKIPPED[join, check])
    CHECKS[check](named(join), workspace)


def test_checks_have_different_names_and_say_what_they_check() -> None:
    checks: list[Check] = all_checks()
    assert len(CHECKS) == len(checks)
    assert len(checks) > 40
    assert all(check.__doc__ for check in checks)


def test_skips_name_joins_and_checks_that_exist() -> None:
    for join, check in SKIPPED:
        assert join in JOINS
        assert check in CHECKS
