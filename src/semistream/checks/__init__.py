"""The conformance suite: what every join must pass, ours and those of others.

A check is a function of a factory of joins and a workspace; it raises where the join breaks the
contract of `semistream.core.join.SemiStreamJoin`. A registered join is checked by

    from semistream.checks import run_checks
    run_checks("sweepjoin")

and a join of your own by registering it in `semistream.joins.registry.JOINS`, or by handing a
`JoinFactory` in its name's place. `all_checks` is for test runners that show each check.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType

from semistream.checks import data, flow, memory, survival
from semistream.checks.driving import JoinFactory, named
from semistream.checks.workspace import Workspace

Check = Callable[[JoinFactory, Workspace], None]

SKIPPED: dict[tuple[str, str], str] = {
    ("memoryjoin", "check_budget_is_kept"): "holds the whole master, and has no use for more",
}
"""Checks that a join need not pass: (join, check) and the reason."""

_MODULES: tuple[ModuleType, ...] = (data, memory, flow, survival)


def all_checks() -> list[Check]:
    """Every check, in the order of their modules: from plain results to rare events."""
    return [
        function
        for module in _MODULES
        for name, function in vars(module).items()
        if name.startswith("check_")
    ]


def run_checks(
    join: str | JoinFactory,
    *,
    workspace: Workspace | None = None,
    skipped: Mapping[tuple[str, str], str] = SKIPPED,
    report: Callable[[str, str], None] | None = None,
) -> None:
    """Run all checks on a join, a registered name or a factory; raises at the first failure.

    `report` is called with the name of each check and "passed" or the reason for which it was
    skipped. Takes some ten seconds, and more the first time, when kernels are compiled.
    """
    make = named(join) if isinstance(join, str) else join
    own = Workspace() if workspace is None else None
    try:
        for check in all_checks():
            reason = skipped.get((make.name, check.__name__))
            if reason is None:
                try:
                    check(make, own or workspace)  # type: ignore[arg-type]
                except Exception as error:
                    error.add_note(f"{make.name} failed {check.__name__}: {check.__doc__}")
                    raise
            if report is not None:
                report(check.__name__, "passed" if reason is None else reason)
    finally:
        if own is not None:
            own.close()


__all__ = ["SKIPPED", "Check", "JoinFactory", "Workspace", "all_checks", "named", "run_checks"]
