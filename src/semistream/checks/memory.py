"""Checks of the memory budget: the least that is accepted is enough, and no more is ever taken."""

from __future__ import annotations

import re

import pyarrow as pa

from semistream.checks import cases
from semistream.checks.driving import (
    JoinFactory,
    Run,
    assert_case,
    cut,
    open_run,
    run_through,
    smallest_memory,
)
from semistream.checks.workspace import Case, Workspace, part
from semistream.core.errors import BudgetError
from semistream.core.join import HOWS


def _is_refused(make: JoinFactory, workspace: Workspace, case: Case, how: str, memory: int) -> bool:
    try:
        run = open_run(make, workspace, case, how, memory)
        with run.join:
            run.push(cut(case.stream)[0])
    except BudgetError:
        return True
    return False


def check_minimum_is_told(make: JoinFactory, workspace: Workspace) -> None:
    """Too little memory is an error that tells the minimum; one byte less is refused as well."""
    for case in (cases.numbers(), cases.mixed(), cases.string_keys(), cases.long_runs()):
        for how in HOWS:
            least = smallest_memory(make, workspace, case, how)
            assert least > 1, "a join without memory was accepted"
            assert _is_refused(make, workspace, case, how, least - 1), (
                f"{make.name} says that it needs {least} bytes, and takes {least - 1}"
            )


def check_budgets_from_the_smallest_up(make: JoinFactory, workspace: Workspace) -> None:
    """Results do not depend on the budget."""
    for whole, how in (
        (cases.numbers(), "left"),
        (cases.mixed(), "inner"),
        (cases.string_collisions(), "left"),
        (cases.long_runs(), "anti"),
        (cases.long_runs(), "inner"),
    ):
        case = part(whole, 500)
        least = smallest_memory(make, workspace, case, how)
        memories = [least, least + 1, *(int(least * factor) for factor in (1.2, 2.5, 10, 40))]
        assert_case(make, workspace, case, hows=(how,), memories=memories)


def check_results_larger_than_the_output(make: JoinFactory, workspace: Workspace) -> None:
    """What one row makes of one page need not fit the output at once, in rows or in bytes."""
    assert_case(make, workspace, cases.many_results(), batch_rows=4)
    assert_case(make, workspace, cases.long_results(), batch_rows=7)
    assert_case(make, workspace, cases.large_pages(), batch_rows=7)
    assert_case(make, workspace, cases.long_stream_rows(), batch_rows=20)


def check_row_that_does_not_fit(make: JoinFactory, workspace: Workspace) -> None:
    """A row too long for the memory is an error that tells how much it takes; others go on."""
    case = cases.mixed()
    memory = 2 * smallest_memory(make, workspace, case, "left")
    run = open_run(make, workspace, case, "left", memory)
    batches = cut(case.stream)
    giant = batches[0].slice(0, 1)
    giant = giant.set_column(
        giant.schema.get_field_index("note"), "note", pa.array(["n" * 2 * memory])
    )
    with run.join:
        for batch in batches:
            error = _budget_error(run, giant)
            assert error is not None, "a row of twice the memory was accepted"
            assert re.search(r'memory="\d+"', error.hint), f"no minimum in the hint of: {error}"
            run.look()
            run.offer(batch)
        run.finish()
        table = run.table()
    workspace.assert_exact(table, case, "left", f"{make.name} beside rows that do not fit")


def _budget_error(run: Run, batch: pa.RecordBatch) -> BudgetError | None:
    try:
        run.offer(batch)
    except BudgetError as error:
        return error
    return None


def check_budget_is_kept(make: JoinFactory, workspace: Workspace) -> None:
    """Accounted memory stays within the budget while shares move; the plan sums to the budget.

    `Run` looks after every call; here the stream is long enough for a join to learn from it.
    """
    for case in (cases.skewed(True), part(cases.uniform(), 20_000)):
        memory = 3 * smallest_memory(make, workspace, case, "left")
        run = open_run(make, workspace, case, "left", memory)
        table = run_through(run, cut(case.stream, 2000))
        workspace.assert_exact(table, case, "left", f"{make.name}, {case.name}")
        stats = run.join.stats
        assert stats.bytes_limit == memory
        assert stats.bytes_peak > memory // 2, f"only {stats.bytes_peak} of {memory} bytes used"
        assert stats.plan is not None, "the join has no plan"
        assert stats.plan.total_bytes == memory
        assert all(share >= 0 for share in stats.plan.shares.values()), stats.plan
