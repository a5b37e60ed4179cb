"""Compile all kernels into their on-disk cache, so that nobody waits for them later.

    python -m semistream.warm_up

It does in small what users do: builds masters, runs every registered join on them, takes snapshots,
reads CSV. What is in the cache already is loaded from there, in a few seconds and without a word;
what is compiled is announced on standard error once two seconds have passed.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numba.core import event

import semistream as ss
from semistream.core.clock import Clock, SystemClock
from semistream.core.join import HOWS
from semistream.core.progress import PATIENCE_NS
from semistream.joins.absent import AbsentFilter
from semistream.joins.api import run
from semistream.joins.registry import JOINS
from semistream.kernels.jit import read_only
from semistream.shed import optimal_loss
from semistream.store.inspect import master_rows, page_table
from semistream.store.sources import open_source
from semistream.workloads import bursty_counts, products, sales

Say: TypeAlias = Callable[[str], None]
Step: TypeAlias = tuple[str, Callable[[], object]]

_ROWS = 600
_KEYS = {"integer": pa.int64(), "string": pa.string()}


def warm_up(say: Say, *, clock: Clock | None = None) -> int:
    """Run every step; `say` gets a line for each that compiles. How many kernels were compiled."""
    with tempfile.TemporaryDirectory() as folder:
        steps = list(_steps(Path(folder)))
        compiling = _Compiling(say, clock or SystemClock(), len(steps))
        with event.install_listener("numba:compile", compiling):
            for name, step in steps:
                compiling.begin(name)
                step()
    return compiling.count


class _Compiling(event.Listener):  # type: ignore[misc,unused-ignore]
    """Hears of every kernel that is compiled, and says so once for each step."""

    def __init__(self, say: Say, clock: Clock, steps: int) -> None:
        self.count = 0
        self._say = say
        self._clock = clock
        self._start_ns = clock.now_ns()
        self._steps = steps
        self._number = 0
        self._unsaid = ""

    def begin(self, step: str) -> None:
        self._number += 1
        self._unsaid = step

    def on_start(self, event: Any) -> None:
        if self._unsaid and self._clock.now_ns() - self._start_ns > PATIENCE_NS:
            self._say(f"compiling for {self._unsaid} (step {self._number} of {self._steps})")
            self._unsaid = ""

    def on_end(self, event: Any) -> None:
        self.count += 1


def _steps(folder: Path) -> Iterator[Step]:
    for name, type_ in _KEYS.items():
        yield f"masters with {name} keys", partial(_build, folder / name, type_)
        changing = partial(_change, folder / f"{name}.changing", type_)
        yield f"changes to masters with {name} keys", changing
    yield "CSV", partial(_read_csv, folder / "rows.csv")
    for join in JOINS:
        for name, type_ in _KEYS.items():
            for how in HOWS:
                yield f"{join}, {name} keys, {how}", partial(_join, folder / name, join, type_, how)
            yield f"{join}, {name} keys, rounds", partial(_repeat, folder / name, join, type_)
    yield "shedding", partial(_shed, folder / "integer")
    yield "workloads", _generate


def _rows(keys: pa.DataType, rows: int) -> pa.Table:
    """Keys that repeat and some that are null; a column of every kind that kernels tell apart."""
    numbers = pa.array([None if i % 50 == 7 else i // 2 for i in range(rows)])
    return pa.table(
        {
            "key": numbers.cast(keys),
            "text": pa.array([None if i % 9 == 0 else f"text {i}" for i in range(rows)]),
            "list": pa.array([None if i % 9 == 1 else ["a", None][: i % 3] for i in range(rows)]),
        }
    )


def _build(path: Path, keys: pa.DataType) -> None:
    ss.build_master(path, _rows(keys, _ROWS), "key", page_size=4096, shards=2)
    long = _rows(keys, 8).append_column("long", pa.array(["x" * 5000] * 8))
    ss.build_master(path.with_suffix(".long"), long, "key")
    with ss.open_master(path) as master:
        page_table(master, 0)
        master.reader(8, companion=True).close()
        for _ in master.bad_pages():
            pass


def _change(path: Path, keys: pa.DataType) -> None:
    ss.build_master(path, _rows(keys, _ROWS), "key", shards=2, fill=0.8)
    (batch,) = _rows(keys, _ROWS).to_batches()
    changes = _rows(keys, 60).append_column("op", pa.array(["update", "delete", "insert"] * 20))
    with (
        ss.open_master(path) as master,
        ss.make_join("sweepjoin", master, on="key", schema=batch.schema, memory="4MB") as join,
    ):
        list(run(join, [batch]))
        AbsentFilter(master).rule_out(read_only(np.zeros(1, np.int64)), np.zeros(1, np.int32))
        ss.apply_changes(path, changes, bad="skip")
        newer = master.newer()
        assert newer is not None
        join.move_to(newer)
        list(run(join, [batch]))
        for _ in newer.bad_pages():
            pass
        ss.compact_master(path)
        for _ in master_rows(newer):
            pass


def _read_csv(path: Path) -> None:
    path.write_text("number,text\n" + "1,a\n" * 10)
    for _ in open_source(path).batches():
        pass


def _join(path: Path, join: str, keys: pa.DataType, how: str) -> None:
    batches = _rows(keys, 2 * _ROWS).to_batches(max_chunksize=_ROWS)
    with ss.open_master(path) as master:
        ss.join(batches, master, on="key", how=how, algorithm=join, memory="4MB").read_all()


def _repeat(path: Path, join: str, keys: pa.DataType) -> None:
    (batch,) = _rows(keys, _ROWS).to_batches()
    with ss.open_master(path) as master:
        make = partial(ss.make_join, join, master, on="key", schema=batch.schema, memory="4MB")
        with make() as first:
            for _ in range(5):  # several rounds, so that caches age
                first.push(batch)
                list(first.finish())
            first.push(batch)
            snapshot = first.snapshot()
        with make() as second:
            second.restore(snapshot)
            list(second.finish())


def _shed(path: Path) -> None:
    shed: list[pa.RecordBatch] = []
    batches = _rows(pa.int64(), _ROWS).to_batches()
    ss.join(
        batches,
        path,
        on="key",
        memory="4MB",
        overload="shed:topw",
        shed_to=shed.append,
        shed_rows=9,
    ).read_all()
    optimal_loss([1, 2], 1, 2)


def _generate() -> None:
    for _ in products(100, seed=1):
        pass
    for skew in (0.0, 1.0):
        for _ in sales(100, products=100, skew=skew):
            pass
    bursty_counts(10, seed=1)


def main() -> None:
    """The command line: as quiet as it can be."""
    warm_up(lambda line: print(line, file=sys.stderr, flush=True))


if __name__ == "__main__":
    main()
