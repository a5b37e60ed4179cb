"""The quick benchmark: what it measures is verified, and a wrong result is found out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from semistream.bench import core
from semistream.bench.core import CoreOptions, run_core
from semistream.core.errors import OptionError
from semistream.joins.operator import Operator
from semistream.joins.registry import DISK_JOINS, JOINS

OPTIONS = CoreOptions(
    rows=20_000,
    memories=("1MB",),
    skews=(1,),
    joins=("sweepjoin",),
    io="buffered",
    stream_rows=100_000,
    seconds=0.2,
)


@pytest.fixture(scope="module")
def workdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bench")


@pytest.mark.parametrize("join", JOINS)
def test_every_join_is_measured_and_verified(join: str, workdir: Path) -> None:
    memory = "1MB" if join in DISK_JOINS else "4MB"
    (cell,) = run_core(replace(OPTIONS, joins=(join,), memories=(memory,)), workdir)
    assert cell.verified
    assert cell.seconds >= 0.1
    assert cell.rows >= 1
    assert cell.rows_per_s == pytest.approx(cell.rows / cell.seconds)
    assert 0 <= cell.hit_share <= 1
    assert cell.requests_per_row <= cell.pages_per_row
    assert cell.latency_p50_s <= cell.latency_p99_s
    assert cell.peak_accounted_bytes <= cell.memory_bytes == int(memory[0]) * 1_000_000


def test_direct_reads(workdir: Path) -> None:
    (cell,) = run_core(replace(OPTIONS, io="direct"), workdir)
    assert cell.verified
    assert cell.io == "direct"


def drop_a_row(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.slice(1)


def repeat_a_row(batch: pa.RecordBatch) -> pa.RecordBatch:
    table = pa.Table.from_batches([batch, batch.slice(0, 1)])
    return table.combine_chunks().to_batches()[0]


def change_a_value(batch: pa.RecordBatch) -> pa.RecordBatch:
    at = batch.schema.get_field_index("stock")
    stock = batch.column("stock").to_numpy().copy()
    stock[0] += 1
    field = batch.schema.field(at)
    return batch.set_column(at, field, pa.array(stock))


@pytest.mark.parametrize("spoil", [drop_a_row, repeat_a_row, change_a_value])
def test_one_wrong_row_among_all_is_found_out(
    spoil: Callable[[pa.RecordBatch], pa.RecordBatch],
    workdir: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    finish = Operator.finish

    def finish_wrongly(self: Operator) -> Iterator[pa.RecordBatch]:
        batches = finish(self)
        yield spoil(next(batches))
        yield from batches

    monkeypatch.setattr(Operator, "finish", finish_wrongly)
    for kind in JOINS.values():
        monkeypatch.setattr(kind, "finish", finish_wrongly)
    (cell,) = run_core(OPTIONS, workdir)
    assert not cell.verified


def test_a_row_lost_in_the_measured_part_is_found_out(
    workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take, measured = Operator.take, core._measured
    to_spoil = 0

    def take_wrongly(self: Operator) -> pa.RecordBatch | None:
        nonlocal to_spoil
        batch = take(self)
        if batch is not None and to_spoil:
            to_spoil -= 1
            return drop_a_row(batch)
        return batch

    def measured_wrongly(*arguments: Any) -> core._Part:
        nonlocal to_spoil
        to_spoil = 1
        return measured(*arguments)

    monkeypatch.setattr(Operator, "take", take_wrongly)
    monkeypatch.setattr(core, "_measured", measured_wrongly)
    (cell,) = run_core(OPTIONS, workdir)
    assert to_spoil == 0
    assert not cell.verified


def test_a_short_stream_is_played_in_a_loop(workdir: Path) -> None:
    (cell,) = run_core(replace(OPTIONS, stream_rows=1000), workdir)
    assert cell.verified
    assert cell.rows > 1000


def test_the_master_is_built_once(workdir: Path) -> None:
    list(run_core(OPTIONS, workdir))
    (path,) = workdir.glob("*.master")
    made = path.stat().st_mtime_ns
    list(run_core(OPTIONS, workdir))
    assert path.stat().st_mtime_ns == made


def test_a_damaged_master_is_built_again(workdir: Path) -> None:
    list(run_core(OPTIONS, workdir))
    (path,) = workdir.glob("*.master")
    file = next(path.glob("v1/*.pages"))
    file.write_bytes(b"\0" * len(file.read_bytes()))
    (cell,) = run_core(OPTIONS, workdir)
    assert cell.verified


def test_what_happens_is_told(workdir: Path) -> None:
    lines: list[str] = []
    list(run_core(replace(OPTIONS, skews=(0, 1)), workdir, tell=lines.append))
    assert lines[0] == "the master of 20,000 rows"
    assert lines[-2:] == [
        "[ 1/2] sweepjoin, memory 1MB, skew 0",
        "[ 2/2] sweepjoin, memory 1MB, skew 1",
    ]


@pytest.mark.parametrize(
    "wrong", [{"joins": ()}, {"memories": ("-1%",)}, {"io": "fast"}, {"seconds": float("inf")}]
)
def test_options_are_checked_before_anything_is_made(wrong: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        replace(OPTIONS, **wrong)


def test_sizes_that_follow_from_the_master() -> None:
    assert CoreOptions(rows=10_000_000).cell_s == 10
    assert CoreOptions(rows=1000).cell_s == 4
    assert CoreOptions(rows=1000).preloaded_rows == 65_536
    assert CoreOptions(rows=10_000_000).preloaded_rows == 4_000_000
    assert CoreOptions(joins=("sweepjoin",)).cells == 4
