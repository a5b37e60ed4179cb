"""`join` and `make_join`: what they take, what they give, and how they say no."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from semistream import build_master, join, list_joins, make_join, open_master
from semistream.checks import Workspace, named, run_checks
from semistream.core.errors import (
    BudgetError,
    CallOrderError,
    KeyTypeError,
    OptionError,
    SchemaError,
    SemiStreamError,
    StoreError,
    UnknownNameError,
)

STREAM = pa.table({"id": [2, 3, 9, None], "n": [1, 2, 3, 4]})
MEMORY = "2MB"


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("api") / "m"
    table = pa.table({"k": [1, 2, 3, 3], "label": ["a", "b", "c", None], "n": [5, 6, 7, 8]})
    build_master(path, table, "k")
    return path


def rows(table: pa.Table) -> list[tuple[Any, ...]]:
    return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True), key=repr)


INNER = [(2, 1, "b", 6), (3, 2, "c", 7), (3, 2, None, 8)]


def reader() -> pa.RecordBatchReader:
    return STREAM.to_reader(max_chunksize=2)


@pytest.mark.parametrize(
    "stream",
    [
        lambda: STREAM,
        lambda: STREAM.to_batches()[0],
        reader,
        lambda: STREAM.to_batches(max_chunksize=1),
        lambda: iter(STREAM.to_batches(max_chunksize=3)),
        lambda: (batch for batch in reader()),
        lambda: pa.concat_tables([STREAM.slice(0, 1), STREAM.slice(1)]),
    ],
)
@pytest.mark.parametrize("algorithm", list_joins())
def test_streams_of_every_kind(stream: Any, algorithm: str, master: Path) -> None:
    joined = join(stream(), master, {"id": "k"}, algorithm=algorithm, memory=MEMORY)
    table = joined.read_all()
    assert table.schema.names == ["id", "n", "label", "n_master"]
    assert rows(table) == sorted(INNER, key=repr)
    assert joined.stats.rows_in == 4
    assert joined.stats.rows_out == 3
    assert joined.schema is not None
    assert joined.schema.equals(table.schema)


def test_kinds_of_joins(master: Path) -> None:
    def result(how: str) -> list[tuple[Any, ...]]:
        return rows(join(STREAM, master, {"id": "k"}, how=how, memory=MEMORY).read_all())

    assert result("semi") == [(2, 1), (3, 2)]
    assert result("anti") == [(9, 3), (None, 4)]
    left = [*INNER, (9, 3, None, None), (None, 4, None, None)]
    assert result("left") == sorted(left, key=repr)


def test_an_open_master_serves_many_joins(master: Path) -> None:
    with open_master(master) as opened:
        first = join(STREAM, opened, {"id": "k"}, memory=MEMORY)
        second = join(STREAM, opened, {"id": "k"}, memory=MEMORY, columns=["label"])
        assert rows(second.read_all()) == sorted([row[:3] for row in INNER], key=repr)
        assert rows(first.read_all()) == sorted(INNER, key=repr)


def test_streams_without_rows(master: Path) -> None:
    assert list(join([], master, "k")) == []
    nothing = join(STREAM.slice(0, 0), master, {"id": "k"}).read_all()
    assert nothing.num_rows == 0
    assert nothing.schema.names == ["id", "n", "label", "n_master"]
    batches = [STREAM.to_batches()[0].slice(0, 0), *STREAM.to_batches()]
    assert join(batches, master, {"id": "k"}, memory=MEMORY).read_all().num_rows == 3
    with pytest.raises(OptionError, match="no schema"):
        join([], master, "k").read_all()


def test_a_stream_is_read_no_further_than_needed(master: Path) -> None:
    pulled = 0

    def endless() -> Iterator[pa.RecordBatch]:
        nonlocal pulled
        while True:
            pulled += 1
            keys = np.full(5000, 3)
            yield pa.RecordBatch.from_pydict({"id": keys, "n": keys})

    joined = join(endless(), master, {"id": "k"}, memory=MEMORY)
    while joined.stats.rows_out < 10_000:
        next(joined)
    joined.close()
    assert pulled < 100
    seen = joined.stats
    assert seen.rows_in >= 5000
    joined.close()
    assert list(joined) == []
    assert joined.stats.rows_in == seen.rows_in


def test_an_error_in_the_stream_comes_through(master: Path) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield STREAM.to_batches()[0]
        raise RuntimeError("the source failed")

    joined = join(broken(), master, {"id": "k"}, memory=MEMORY)
    with pytest.raises(RuntimeError, match="the source failed"):
        list(joined)
    assert joined.stats.rows_in == 4


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"how": "outer"}, OptionError, "inner, left, semi, anti"),
        ({"algorithm": "sweepjoni"}, UnknownNameError, "did you mean 'sweepjoin'"),
        ({"on": "id"}, UnknownNameError, "its key is k"),
        ({"on": {"idd": "k"}}, UnknownNameError, "did you mean 'id'"),
        ({"on": {"id": "k", "n": "k"}}, OptionError, "two of the stream"),
        ({"on": []}, OptionError, "no stream column"),
        ({"on": 3}, OptionError, "names no columns"),
        ({"on": {"id": "k", "n": "label"}}, UnknownNameError, "its key is k"),
        ({"columns": ["lable"]}, UnknownNameError, "did you mean 'label'"),
        ({"memory": "10B"}, BudgetError, "needs at least"),
        ({"memory": "lots"}, OptionError, "'lots'"),
        ({"memory": -1}, OptionError, "not above zero"),
        ({"io": "magic"}, OptionError, "buffered"),
        ({"partition_pages": 3}, UnknownNameError, "option of sweepjoin"),
        ({"algorithm": "meshjoin", "chunks": 3}, UnknownNameError, "did you mean 'chunk'"),
        ({"algorithm": "hybridjoin", "partition_pages": 0}, OptionError, "partition_pages=0"),
        ({"algorithm": "meshjoin", "chunk": "big"}, OptionError, "chunk='big'"),
    ],
)
def test_wrong_arguments(
    arguments: dict[str, Any], error: type[SemiStreamError], text: str, master: Path
) -> None:
    given = {"on": {"id": "k"}, "memory": MEMORY, **arguments}
    with pytest.raises(error) as caught:
        join(STREAM, master, given.pop("on"), **given).read_all()
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("stream", "error", "text"),
    [
        (pa.table({"id": ["2"]}), KeyTypeError, "'id' is string and the master's key 'k' is int64"),
        (pa.table({"id": [2.0]}), KeyTypeError, "double"),
        (pa.table([[2], [3]], names=["id", "id"]), SchemaError, "two columns of one name"),
        ([STREAM], OptionError, "Table"),
        (7, OptionError, "int"),
        ({"id": [2]}, OptionError, "str"),
        ([STREAM.to_batches()[0], STREAM], SchemaError, "Table"),
        ([STREAM.to_batches()[0], None], (SchemaError, AttributeError), "None"),
        (
            [STREAM.to_batches()[0], STREAM.select(["id"]).to_batches()[0]],
            SchemaError,
            "id int64, n int64",
        ),
    ],
)
def test_wrong_streams(stream: Any, error: Any, text: str, master: Path) -> None:
    with pytest.raises(error) as caught:
        join(stream, master, {"id": "k"}, memory=MEMORY).read_all()
    assert text in str(caught.value)


def test_a_master_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no master"):
        join(STREAM, tmp_path / "nothing", "id")


def test_options_of_algorithms(master: Path) -> None:
    for options in (
        {"algorithm": "meshjoin", "chunk": "8kB"},
        {"algorithm": "hybridjoin", "partition_pages": 2, "loads_per_step": 1},
    ):
        table = join(STREAM, master, {"id": "k"}, memory=MEMORY, **options).read_all()
        assert rows(table) == sorted(INNER, key=repr)


def test_memory_as_a_share_of_the_master(tmp_path: Path) -> None:
    table = pa.table({"k": np.arange(100_000), "v": np.arange(100_000)})
    build_master(tmp_path / "m", table, "k")
    made = make_join("auto", tmp_path / "m", on="k", schema=table.schema, memory="50%")
    with open_master(tmp_path / "m") as opened:
        assert made.stats.bytes_limit == opened.data_bytes // 2
    made.close()


def test_a_failed_start_leaves_the_join_as_it_was(
    master: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error while memory is taken must not be hidden by another one."""
    made = make_join("sweepjoin", master, on={"id": "k"}, schema=STREAM.schema, memory=MEMORY)
    with monkeypatch.context() as patch:
        patch.setattr(made, "bind_kernels", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            made.push(STREAM.to_batches()[0])
    assert made.stats.rows_in == 0
    assert made.stats.rows_waiting == 0
    made.close()
    with pytest.raises(CallOrderError):
        made.take()


# The suite itself.


def test_run_checks_reports_and_stops_at_a_failure(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check_good(make: Any, workspace: Workspace) -> None:
        """Passes."""

    def check_bad(make: Any, workspace: Workspace) -> None:
        """Never passes."""
        raise AssertionError("no")

    def check_skipped(make: Any, workspace: Workspace) -> None:
        """Is not run."""
        raise AssertionError("was run")

    monkeypatch.setattr("semistream.checks.all_checks", lambda: [check_good, check_skipped])
    seen: list[tuple[str, str]] = []
    run_checks(
        named("inlj"),
        workspace=workspace,
        skipped={("inlj", "check_skipped"): "too slow"},
        report=lambda *event: seen.append(event),
    )
    assert seen == [("check_good", "passed"), ("check_skipped", "too slow")]
    monkeypatch.setattr("semistream.checks.all_checks", lambda: [check_bad])
    with pytest.raises(AssertionError) as caught:
        run_checks("inlj", workspace=workspace)
    assert "inlj failed check_bad: Never passes." in caught.value.__notes__


def test_rows_without_a_page_pass_in_any_number(tmp_path: Path) -> None:
    """More of them than are noted before results are written."""
    build_master(tmp_path / "m", pa.table({"id": range(100), "v": range(100)}), "id")
    keys = [-1 - i for i in range(700)]
    stream = pa.table({"id": keys, "n": range(700)})
    for algorithm in list_joins():
        result = join(
            stream, tmp_path / "m", "id", how="left", algorithm=algorithm, memory="1MB"
        ).read_all()
        assert sorted(result["id"].to_pylist()) == sorted(keys), algorithm
        assert sorted(result["n"].to_pylist()) == list(range(700)), algorithm
        assert result["v"].null_count == 700, algorithm
