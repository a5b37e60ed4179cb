"""Joins that shed: what is left, what went to the side output, and the counters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import semistream as ss
from semistream.checks import Workspace
from semistream.checks.cases import duplicates, one_key, wide
from semistream.checks.driving import Run, cut
from semistream.checks.workspace import Case, part
from semistream.core.errors import (
    BudgetError,
    CallOrderError,
    OptionError,
    SchemaError,
    SinkError,
    UnknownNameError,
)
from semistream.core.join import HOWS, Snapshot
from semistream.joins.registry import JOINS
from semistream.shed import POLICIES, estimate_sum
from semistream.store.counting import KeyCounts
from semistream.workloads import zipf_ranks

KEYS = 400


def busy() -> Case:
    """Keys that repeat on both sides, those that repeat most in the master not so in the stream."""
    master = np.repeat(np.arange(KEYS), 1 + 60 // np.arange(1, KEYS + 1))
    stream = (zipf_ranks(KEYS + 20, 0.3, 6000, 1) - 1) * 7 % (KEYS + 20)
    return one_key("busy", pa.array(stream), pa.array(master), strings=False)


BUSY = busy()


def open_busy(workspace: Workspace, name: str, policy: str, shed_to: Any, **options: Any) -> Run:
    arguments: dict[str, Any] = {"how": "inner", "memory": 2_000_000, "shed_rows": 60, **options}
    join = ss.make_join(
        name,
        workspace.master(BUSY),
        on={"id": "k"},
        schema=BUSY.stream.schema,
        overload=f"shed:{policy}",
        shed_to=shed_to,
        **arguments,
    )
    return Run(join)


def drive(run: Run, batches: list[pa.RecordBatch]) -> pa.Table:
    """A step for every batch: the stream does not wait."""
    with run.join:
        for batch in batches:
            assert run.push(batch) == batch.num_rows
            run.step()
        run.finish()
        return run.table()


def read(path: Path) -> pa.Table:
    with pa.ipc.open_stream(str(path)) as reader:
        return reader.read_all()


@pytest.mark.parametrize("join", JOINS)
def test_a_later_run_completes_what_was_shed(
    join: str, workspace: Workspace, tmp_path: Path
) -> None:
    file = tmp_path / "shed.arrow"
    run = open_busy(workspace, join, "topw", file, how="left")
    first = drive(run, cut(BUSY.stream, 150))
    stats = run.join.stats
    assert stats.rows_in == BUSY.stream.num_rows
    assert 0 < stats.rows_shed < stats.rows_in
    assert stats.rows_matched + stats.rows_unmatched == stats.rows_in - stats.rows_shed
    shed = read(file)
    assert shed.num_rows == stats.rows_shed
    with pa.ipc.open_stream(str(file)) as again:
        rest = ss.join(again, workspace.master(BUSY), on={"id": "k"}, how="left").read_all()
    workspace.assert_exact(pa.concat_tables([first, rest]), BUSY, "left", f"{join} and a later run")


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_and_kind_of_join(policy: str, how: str, workspace: Workspace) -> None:
    shed: list[pa.RecordBatch] = []
    run = open_busy(workspace, "meshjoin", policy, shed.append, how=how)
    first = drive(run, cut(BUSY.stream, 150))
    assert sum(batch.num_rows for batch in shed) == run.join.stats.rows_shed > 0
    rest = ss.join(iter(shed), workspace.master(BUSY), on={"id": "k"}, how=how).read_all()
    whole = pa.concat_tables([first, rest])
    workspace.assert_exact(whole, BUSY, how, f"{policy} and a later run")


def test_a_join_that_keeps_up_sheds_nothing(workspace: Workspace, tmp_path: Path) -> None:
    file = tmp_path / "shed.arrow"
    run = open_busy(workspace, "sweepjoin", "topw", file, shed_rows=None, memory=2_000_000)
    table = drive(run, cut(BUSY.stream, 150))
    assert run.join.stats.rows_shed == 0
    assert not file.exists()
    workspace.assert_exact(table, BUSY, "inner", "without overload")


def test_topw_leaves_the_most_results(workspace: Workspace) -> None:
    left = {}
    for policy in POLICIES:
        run = open_busy(workspace, "meshjoin", policy, lambda batch: None)
        left[policy] = drive(run, cut(BUSY.stream, 150)).num_rows
        # All of them keep as many rows.
        assert run.join.stats.rows_shed == BUSY.stream.num_rows * 90 // 150
    assert left["topw"] > 1.3 * left["keep"]
    assert left["topw"] >= left["cluster"] > 1.2 * left["sample"]


def test_topw_keeps_the_rows_with_most_partners_of_each_interval(workspace: Workspace) -> None:
    shed: list[pa.RecordBatch] = []
    run = open_busy(workspace, "meshjoin", "topw", shed.append)
    keys, counts = np.unique(BUSY.master["k"].to_numpy(), return_counts=True)
    partners = dict(zip(keys.tolist(), counts.tolist(), strict=True))
    with run.join:
        for batch in cut(BUSY.stream, 150)[:5]:
            shed.clear()
            run.push(batch)
            gone = [partners.get(k, 1) for part in shed for k in part["id"].to_pylist()]
            all_of_them = sorted(partners.get(k, 1) for k in batch["id"].to_pylist())
            assert sorted(gone) == all_of_them[:90]
            run.step()
            while run.join.stats.rows_waiting:
                run.step()


@pytest.mark.parametrize("policy", ["sample", "cluster"])
def test_results_carry_weights_from_which_sums_are_estimated(
    policy: str, workspace: Workspace
) -> None:
    run = open_busy(workspace, "meshjoin", policy, lambda batch: None, weights="weight", seed=3)
    table = drive(run, cut(BUSY.stream, 150))
    assert table.column_names[:4] == ["event", "id", "amount", "weight"]
    whole = ss.join(BUSY.stream, workspace.master(BUSY), on={"id": "k"}).read_all()
    found = estimate_sum(np.ones(table.num_rows), table["weight"], table["event"])
    assert abs(found.value - whole.num_rows) < 4 * found.standard_error
    assert found.standard_error < whole.num_rows / 10
    assert table.num_rows < whole.num_rows


def test_columns_of_many_types_and_snapshots(workspace: Workspace) -> None:
    """Rows that have arrived are in a snapshot; those that were shed are not."""
    for case in (wide(), part(duplicates(), 400)):
        shed: list[pa.RecordBatch] = []
        arguments: dict[str, Any] = {
            "on": dict(case.on),
            "schema": case.stream.schema,
            "how": "left",
            "memory": 4_000_000,
            "overload": "shed:sample",
            "shed_to": shed.append,
            "shed_rows": 20,
        }
        run = Run(ss.make_join("hybridjoin", workspace.master(case), **arguments))
        for number, batch in enumerate(cut(case.stream, 50)):
            run.push(batch)
            if number % 2:
                run.step()
            data = run.join.snapshot().to_bytes()
            taken, waiting = run.batches, run.join.stats.rows_waiting
            run.join.close()
            run = Run(ss.make_join("hybridjoin", workspace.master(case), **arguments))
            run.batches = taken
            run.join.restore(Snapshot.from_bytes(data))
            assert run.look().rows_waiting == waiting
        run.finish()
        first = run.table()
        run.join.close()
        assert shed
        rest = ss.join(iter(shed), workspace.master(case), on=dict(case.on), how="left").read_all()
        workspace.assert_exact(pa.concat_tables([first, rest]), case, "left", "moved and shed")


def test_what_is_pushed_may_be_overwritten(workspace: Workspace) -> None:
    run = open_busy(workspace, "meshjoin", "topw", lambda batch: None)
    batch = cut(BUSY.stream, 40)[0]
    keys = batch["id"].to_numpy().copy()
    expected = ss.join(batch, workspace.master(BUSY), on={"id": "k"}).read_all()
    run.push(
        batch.set_column(1, "id", pa.Array.from_buffers(pa.int64(), 40, [None, pa.py_buffer(keys)]))
    )
    keys[:] = 0
    run.finish()
    assert sorted(run.table()["event"].to_pylist()) == sorted(expected["event"].to_pylist())
    run.join.close()


def test_the_budget_is_kept(workspace: Workspace, tmp_path: Path) -> None:
    run = open_busy(workspace, "meshjoin", "topw", tmp_path / "s", shed_rows=None, memory=400_000)
    drive(run, cut(BUSY.stream, 2000))
    stats = run.join.stats
    assert stats.bytes_limit == 400_000
    assert stats.bytes_by_component["key counts"] > 0
    assert stats.rows_shed > 0


def test_the_least_memory_is_told_with_that_for_arriving_rows(workspace: Workspace) -> None:
    memory = 1000
    for _ in range(16):
        try:
            open_busy(workspace, "meshjoin", "topw", print, memory=memory).join.close()
        except BudgetError as error:
            asked = int(error.hint.split('"')[1])
            assert asked > memory
            memory = asked
        else:
            break
    else:
        raise AssertionError("more memory is asked for each time")
    with pytest.raises(BudgetError, match="but for arriving rows"):
        open_busy(workspace, "meshjoin", "topw", print, memory=memory - 10)


def test_join_sheds_what_a_batch_has_too_many(workspace: Workspace) -> None:
    shed: list[pa.RecordBatch] = []
    joined = ss.join(
        iter(cut(BUSY.stream, 150)),
        workspace.master(BUSY),
        on={"id": "k"},
        algorithm="meshjoin",
        memory=2_000_000,
        overload="shed:keep",
        shed_to=shed.append,
        shed_rows=60,
    )
    events = joined.read_all()["event"].to_numpy()
    assert joined.stats.rows_shed == sum(batch.num_rows for batch in shed) == 3600
    # Keep w keeps the first of each interval.
    assert (events % 150 < 60).all()


def test_shed_rows_are_written_as_they_go(workspace: Workspace, tmp_path: Path) -> None:
    file = tmp_path / "shed.arrow"
    run = open_busy(workspace, "meshjoin", "keep", file)
    run.push(cut(BUSY.stream, 150)[0])
    assert read(file).num_rows == 90  # while the join is open
    run.join.close()
    with pytest.raises(CallOrderError):
        run.join.push(cut(BUSY.stream)[0])
    with pytest.raises(SinkError, match="is there already"):
        open_busy(workspace, "meshjoin", "keep", file)
    broken = open_busy(workspace, "meshjoin", "keep", tmp_path / "no" / "folder")
    with pytest.raises(SinkError, match="cannot be written"), broken.join as join:
        join.push(cut(BUSY.stream)[0])


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"overload": "shed:best"}, UnknownNameError, "shed:topw"),
        ({"overload": "drop"}, UnknownNameError, "block, shed:cluster, shed:keep"),
        ({"overload": "shed:topw"}, OptionError, "no side output"),
        ({"overload": "shed:topw", "shed_to": 7}, OptionError, "int as side output"),
        ({"shed_to": print}, OptionError, "overload='block' sheds nothing"),
        ({"shed_rows": 5}, OptionError, "overload='block' sheds nothing"),
        ({"overload": "shed:keep", "shed_to": print, "shed_rows": 0}, OptionError, "shed_rows=0"),
        ({"overload": "shed:keep", "shed_to": print, "weights": "w"}, OptionError, "no sample"),
        ({"overload": "shed:sample", "shed_to": print, "weights": "id"}, OptionError, "a column"),
    ],
)
def test_options_that_make_no_sense(
    options: dict[str, Any], error: type[Exception], message: str, workspace: Workspace
) -> None:
    with pytest.raises(error, match=message):
        ss.make_join(
            "meshjoin", workspace.master(BUSY), on={"id": "k"}, schema=BUSY.stream.schema, **options
        )


def test_conditions_do_not_tell_how_many_partners_rows_have(workspace: Workspace) -> None:
    with pytest.raises(OptionError, match="how many partners"):
        ss.make_join(
            "meshjoin",
            workspace.master(BUSY),
            schema=BUSY.stream.schema,
            condition=ss.compare("id", "<", "k"),
            overload="shed:topw",
            shed_to=print,
        )


def test_another_schema_is_refused(workspace: Workspace) -> None:
    run = open_busy(workspace, "meshjoin", "keep", print)
    with run.join as join, pytest.raises(SchemaError, match="columns"):
        join.push(cut(BUSY.stream)[0].select(["id"]))


# What is known of keys.


def test_counts_of_the_most_frequent_keys(workspace: Workspace) -> None:
    keys, counts = np.unique(BUSY.master["k"].to_numpy(), return_counts=True)
    with ss.open_master(workspace.master(BUSY)) as master:
        known = KeyCounts.of(master, 1000)
        assert known.rows_of(keys).tolist() == counts.tolist()
        assert known.lists(keys).tolist() == (counts > 1).tolist()
        assert known.rows_of(np.array([-5])).tolist() == [1.0]
        few = KeyCounts.of(master, 10)
        assert len(few.keys) == 10
        top = np.argsort(-counts)[:10]
        assert few.rows_of(keys[top]).tolist() == counts[top].tolist()
        rest = np.delete(counts, top)
        assert few.rest == pytest.approx(rest.mean())


@pytest.mark.parametrize("build", [{"shards": 3}, {"frequency": "row"}, {"page_size": 4096}])
def test_counts_whatever_the_order_of_pages(build: dict[str, Any], tmp_path: Path) -> None:
    keys = np.random.default_rng(1).integers(0, 50, 3000)
    table = pa.table({"k": keys, "row": np.arange(3000)})
    ss.build_master(tmp_path / "m", table, "k", **build)
    numbers, counts = np.unique(keys, return_counts=True)
    with ss.open_master(tmp_path / "m") as master:
        assert KeyCounts.of(master, 100).rows_of(numbers).tolist() == counts.tolist()
