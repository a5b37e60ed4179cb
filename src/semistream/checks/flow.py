"""Checks of the calls: batches of any size, pauses, refusals, reuse, errors and the end."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pyarrow as pa

from semistream.checks import cases
from semistream.checks.driving import (
    ROOMY,
    JoinFactory,
    Run,
    assert_case,
    cut,
    open_run,
    run_through,
    smallest_memory,
)
from semistream.checks.workspace import Case, Workspace, part
from semistream.core.errors import CallOrderError, CorruptPageError, SchemaError
from semistream.core.join import HOWS
from semistream.testing import ManualClock


def _bytes_of(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def _raises(error: type[Exception], call: Callable[[], object], what: str) -> None:
    try:
        call()
    except error:
        return
    raise AssertionError(f"{what} raised no {error.__name__}")


def check_batch_sizes(make: JoinFactory, workspace: Workspace) -> None:
    """Batches of one row, of a few and of all the stream at once, with little memory and much."""
    short = part(cases.duplicates(), 150)
    for rows in (1, 2, 7):
        assert_case(make, workspace, short, hows=("left",), batch_rows=rows)
    case = part(cases.uniform(), 20_000)
    least = smallest_memory(make, workspace, case, "inner")
    for rows in (1000, 100_000):
        memories = (4 * least, ROOMY)
        assert_case(make, workspace, case, hows=("inner",), batch_rows=rows, memories=memories)


def check_slices(make: JoinFactory, workspace: Workspace) -> None:
    """Batches that begin in the middle of their buffers, at any bit of their null masks."""
    for case in (cases.null_keys(), cases.wide(), cases.string_keys()):
        whole = case.stream.combine_chunks().to_batches()[0]
        run = open_run(make, workspace, case, "left")
        ends = [*range(0, whole.num_rows, 37), whole.num_rows]
        parts = [whole.slice(a, b - a) for a, b in pairwise(ends)]
        table = run_through(run, parts)
        workspace.assert_exact(table, case, "left", f"{make.name}, slices of {case.name}")


def check_pauses(make: JoinFactory, workspace: Workspace) -> None:
    """Steps without new rows give the results of rows that wait; then they do nothing."""
    case = cases.duplicates()
    for how in HOWS:
        memory = 2 * smallest_memory(make, workspace, case, how)
        run = open_run(make, workspace, case, how, memory)
        with run.join:
            for _ in range(3):
                assert run.step() == 0, "results without rows"
            for number, batch in enumerate(cut(case.stream, 130)):
                run.offer(batch)
                for _ in range(number % 4):
                    run.step()
                if number % 5 == 4:
                    run.drain()
                    before = run.join.stats
                    for _ in range(3):
                        assert run.step() == 0, "results without rows"
                        assert run.take() == 0, "results without rows"
                    assert run.join.stats.rows_in == before.rows_in
                run.push(batch.slice(0, 0))
            run.drain()
            table = run.table()
        workspace.assert_exact(table, case, how, f"{make.name}, {how} with pauses")


def check_bursts(make: JoinFactory, workspace: Workspace) -> None:
    """Quiet times in which the join drains, then more rows at once than it has room for."""
    case = cases.skewed(False)
    memory = 3 * smallest_memory(make, workspace, case, "inner")
    run = open_run(make, workspace, case, "inner", memory)
    whole = case.stream.combine_chunks().to_batches()[0]
    with run.join:
        at, size = 0, 1
        while at < whole.num_rows:
            run.offer(whole.slice(at, size))
            at += size
            size = 1 if size > 5000 else 3 * size
            if size == 1:
                run.drain()
        run.finish()
        table = run.table()
    workspace.assert_exact(table, case, "inner", f"{make.name} with bursts")


def check_drained(make: JoinFactory, workspace: Workspace) -> None:
    """Batches that are joined completely, one by one, with little memory and much."""
    for case in cases_to_drain():
        few = part(case, 1000)
        for how in HOWS if workspace.thorough else ("left", "semi"):
            least = smallest_memory(make, workspace, few, how, batch_rows=250)
            for memory, one, rows in ((least, few, 250), (ROOMY, case, 700), (ROOMY, case, 10**6)):
                run = open_run(make, workspace, one, how, memory)
                with run.join:
                    for batch in cut(one.stream, rows):
                        run.drained(batch)
                    run.drained(pa.RecordBatch.from_pylist([], schema=one.stream.schema))
                    table = run.table()
                what = f"{make.name}, {case.name}, {how}, drained with {memory} bytes"
                workspace.assert_exact(table, one, how, what)


def cases_to_drain() -> tuple[Case, ...]:
    """Cases in which rows take every way through a join that knows how to drain a batch."""
    return (
        cases.numbers(),
        cases.null_keys(),
        cases.string_collisions(),
        cases.composite_strings(),
        cases.long_runs(),
        cases.hot_string(),
        cases.sharded(),
        cases.long_results(),
        cases.empty_master(),
        cases.skewed(False),
    )


def check_drained_beside_others(make: JoinFactory, workspace: Workspace) -> None:
    """Rows that wait are answered with the batch that is drained, and rows may wait again."""
    case = cases.duplicates()
    run = open_run(make, workspace, case, "left")
    with run.join:
        for number, batch in enumerate(cut(case.stream, 170)):
            if number % 3 == 1:
                run.drained(batch)
            else:
                run.offer(batch)
        run.finish()
        table = run.table()
    workspace.assert_exact(table, case, "left", f"{make.name}, some batches drained")


def check_back_pressure(make: JoinFactory, workspace: Workspace) -> None:
    """Without room rows are refused, none is lost, and room comes back by steps alone."""
    case = part(cases.uniform(), 3000)
    for how in HOWS:
        memory = smallest_memory(make, workspace, case, how)
        run = open_run(make, workspace, case, how, memory)
        whole = case.stream.combine_chunks().to_batches()[0]
        with run.join:
            accepted = run.push(whole)
            assert accepted > 0, "all rows were refused"
            # A join may make room by itself, but not for results that nobody takes; a left join
            # has one for every row.
            assert accepted < whole.num_rows or how != "left", "no row was refused"
            for _ in range(100):
                rest = whole.slice(run.join.stats.rows_in)
                if run.push(rest) == 0:
                    break
                run.take()
            else:
                raise AssertionError("rows are accepted for ever without a step")
            run.offer(whole.slice(run.join.stats.rows_in))
            run.finish()
            table = run.table()
        workspace.assert_exact(table, case, how, f"{make.name}, {how} with refusals")


def check_results_come_without_finish(make: JoinFactory, workspace: Workspace) -> None:
    """No row waits for ever: steps alone bring every result, with a single row as well."""
    for case in (cases.long_runs(), cases.sharded(), cases.string_collisions()):
        memory = 2 * smallest_memory(make, workspace, case, "left")
        run = open_run(make, workspace, case, "left", memory)
        with run.join:
            for batch in cut(case.stream.slice(0, 1)):
                run.offer(batch)
                run.drain()
            for batch in cut(case.stream.slice(1)):
                run.offer(batch)
            run.drain()
            table = run.table()
        workspace.assert_exact(table, case, "left", f"{make.name}, {case.name} by steps alone")


def check_reuse_after_finish(make: JoinFactory, workspace: Workspace) -> None:
    """After `finish` the join takes rows again, as if it were new."""
    case = part(cases.mixed(), 1000)
    for how in HOWS:
        memory = 2 * smallest_memory(make, workspace, case, how)
        run = open_run(make, workspace, case, how, memory)
        with run.join:
            run.finish()
            for round_ in range(3):
                run.batches.clear()
                for batch in cut(case.stream):
                    run.offer(batch)
                run.finish()
                what = f"{make.name}, {how}, round {round_}"
                workspace.assert_exact(run.table(), case, how, what)
            assert run.join.stats.rows_in == 3 * case.stream.num_rows


def check_counters(make: JoinFactory, workspace: Workspace) -> None:
    """Matched, unmatched, null keys and reads are counted; the record goes to JSON."""
    case = cases.null_keys()
    keys = case.master.column("k").to_pylist()
    stored = {key for key in keys if key is not None}
    asked = case.stream.column("id").to_pylist()
    for how in HOWS:
        run = open_run(make, workspace, case, how)
        run_through(run, cut(case.stream))
        stats = run.join.stats
        assert stats.algorithm, "the record names no algorithm"
        assert stats.rows_in == len(asked)
        assert stats.rows_matched == sum(key in stored for key in asked), "matched is miscounted"
        assert stats.rows_null_key == sum(key is None for key in asked), "nulls are miscounted"
        assert stats.pages_read > 0, "no page was read"
        assert stats.requests > 0, "no request was counted"
        assert stats.bytes_read > 0, "no byte was read"
        assert stats.iterations > 0, "no iteration was counted"
        json.dumps(stats.to_dict())


def check_input_is_not_changed(make: JoinFactory, workspace: Workspace) -> None:
    """Batches that were pushed are the same afterwards."""
    for case in (cases.wide(), cases.null_keys(), cases.skewed(True)):
        batches = cut(case.stream.slice(0, 3000))
        before = [_bytes_of(batch) for batch in batches]
        run_through(open_run(make, workspace, case, "left"), batches)
        for batch, content in zip(batches, before, strict=True):
            assert _bytes_of(batch) == content, f"a batch of {case.name} was changed"


def check_input_is_not_kept(make: JoinFactory, workspace: Workspace) -> None:
    """Memory of a batch may be reused as soon as `push` returns."""
    case = cases.mixed()
    memory = 2 * smallest_memory(make, workspace, case, "left")
    run = open_run(make, workspace, case, "left", memory)
    with run.join:
        for batch in cut(case.stream):
            while batch.num_rows:
                copy, buffers = _own_copy(batch)
                batch = batch.slice(run.push(copy))
                for buffer in buffers:
                    buffer[:] = 0x5A
                run.step()
        run.finish()
        table = run.table()
    workspace.assert_exact(table, case, "left", f"{make.name}, batches overwritten after push")


def _own_copy(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, list[np.ndarray]]:
    """The batch in memory of its own, and that memory."""
    memory: list[np.ndarray] = []
    columns = []
    for column in pa.RecordBatch.from_pylist(batch.to_pylist(), schema=batch.schema).columns:
        buffers: list[pa.Buffer | None] = []
        for buffer in column.buffers():
            if buffer is None:
                buffers.append(None)
                continue
            memory.append(np.frombuffer(buffer, np.uint8).copy())
            buffers.append(pa.py_buffer(memory[-1]))
        columns.append(pa.Array.from_buffers(column.type, len(column), buffers))
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema), memory


def check_results_stay(make: JoinFactory, workspace: Workspace) -> None:
    """A batch of results is the receiver's: nothing that follows changes it."""
    case = cases.mixed()
    memory = 2 * smallest_memory(make, workspace, case, "left")
    run = open_run(make, workspace, case, "left", memory)
    seen: list[bytes] = []
    with run.join:
        for batch in cut(case.stream, 200):
            run.offer(batch)
            seen += [_bytes_of(result) for result in run.batches[len(seen) :]]
        run.finish()
    for result, content in zip(run.batches, seen, strict=False):
        assert _bytes_of(result) == content, "a batch of results changed after it was taken"
    table = run.table()
    workspace.assert_exact(table, case, "left", f"{make.name}, results after close")


def check_same_seed_same_results(make: JoinFactory, workspace: Workspace) -> None:
    """With a clock driven by hand and one seed, the sequence of result batches repeats."""
    for case, rows in ((part(cases.skewed(True), 9000), 1000), (cases.long_runs(), 20)):
        memory = 3 * smallest_memory(make, workspace, case, "left")
        first = _sequence(make, workspace, case, memory, rows)
        assert len(first) > 1, "the check needs several batches"
        second = _sequence(make, workspace, case, memory, rows)
        assert len(first) == len(second), "another number of batches the second time"
        for a, b in zip(first, second, strict=True):
            assert a.equals(b), "another batch the second time"


def _sequence(
    make: JoinFactory, workspace: Workspace, case: Case, memory: int, rows: int
) -> list[pa.RecordBatch]:
    clock = ManualClock()
    run = open_run(make, workspace, case, "left", memory, clock=clock, seed=7)
    with run.join:
        for batch in cut(case.stream, rows):
            run.offer(batch)
            clock.advance(0.25)
            run.step()
        run.finish()
    workspace.assert_exact(run.table(), case, "left", f"{make.name}, clock driven by hand")
    return run.batches


def check_other_seeds(make: JoinFactory, workspace: Workspace) -> None:
    """Chance decides at most what is cached, never what comes out."""
    case = part(cases.skewed(True), 4000)
    memory = 2 * smallest_memory(make, workspace, case, "inner")
    for seed in (1, 2**31, -5):
        run = open_run(make, workspace, case, "inner", memory, seed=seed)
        table = run_through(run, cut(case.stream, 2000))
        workspace.assert_exact(table, case, "inner", f"{make.name}, seed {seed}")


def check_wrong_batch(make: JoinFactory, workspace: Workspace) -> None:
    """A batch of another schema is an error and leaves the join as it was."""
    case = cases.mixed()
    run = open_run(make, workspace, case, "left")
    batches = cut(case.stream)
    renamed = batches[0].rename_columns([f"x{i}" for i in range(batches[0].num_columns)])
    fewer = batches[0].select(batches[0].schema.names[:-1])
    with run.join:
        for wrong in (renamed, fewer):
            _raises(SchemaError, lambda wrong=wrong: run.join.push(wrong), "a wrong first batch")  # type: ignore[misc]
            run.look()
        run.offer(batches[0])
        _raises(SchemaError, lambda: run.join.push(renamed), "a wrong batch")
        run.look()
        for batch in batches[1:]:
            run.offer(batch)
        run.finish()
        table = run.table()
    workspace.assert_exact(table, case, "left", f"{make.name} after a wrong batch")


def check_closed(make: JoinFactory, workspace: Workspace) -> None:
    """After `close` every call is an error, but for another `close`; the counters stay."""
    case = cases.numbers()
    batch = cut(case.stream)[0]

    def closed(run: Run) -> None:
        run.join.close()
        run.join.close()
        join = run.join
        calls: dict[str, Callable[[], object]] = {
            "push": lambda: join.push(batch),
            "push of no rows": lambda: join.push(batch.slice(0, 0)),
            "step": join.step,
            "take": join.take,
            "finish": lambda: list(join.finish()),
            "snapshot": join.snapshot,
        }
        for name, call in calls.items():
            _raises(CallOrderError, call, f"{name} after close")

    closed(open_run(make, workspace, case, "inner"))
    run = open_run(make, workspace, case, "inner")
    run.push(batch)
    closed(run)
    assert run.join.stats.rows_in > 0
    run = open_run(make, workspace, case, "inner")
    run.offer(batch)
    run.finish()
    closed(run)
    with open_run(make, workspace, case, "inner").join as join:
        pass
    _raises(CallOrderError, join.step, "step after the end of a with block")


def check_damaged_page(make: JoinFactory, workspace: Workspace) -> None:
    """A page that was changed on disk is an error, never a wrong result."""
    base = cases.numbers()
    case = Case(f"damaged for {make.name}", base.stream, base.master, base.on)
    path = workspace.master(case)
    file = next(path.glob("*/*.pages"))
    whole = path / "whole"
    if not whole.exists():
        whole.write_bytes(file.read_bytes())
    content = bytearray(whole.read_bytes())
    for at in range(2000, len(content), 4096):
        content[at] ^= 1
    file.write_bytes(content)
    run = open_run(make, workspace, case, "inner")
    _raises(CorruptPageError, lambda: run_through(run, cut(case.stream)), "a damaged page")
