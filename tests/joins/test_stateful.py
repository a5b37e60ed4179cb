"""Random interleavings of all calls, against an oracle that is a dictionary."""

from __future__ import annotations

import tempfile
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from semistream.checks.driving import Run, named, smallest_memory
from semistream.checks.workspace import Case, Workspace
from semistream.core.join import HOWS, Snapshot
from semistream.joins.registry import JOINS
from tests.examples import examples

KEYS = 24
"""Keys 0 to 19 are in the master, 3 and 11 over several pages; the others are not."""

LONG_RUNS = {3: 130, 11: 70}

LONGEST_NOTE = 29


@cache
def workspace() -> Workspace:
    """One for the session; hypothesis makes machines without fixtures."""
    return Workspace(Path(tempfile.mkdtemp(prefix="semistream-stateful-")))


def key_of(number: int | None, hashed: bool) -> Any:
    return f"key {number}" if hashed and number is not None else number


@cache
def case(hashed: bool) -> Case:
    keys = [k for k in range(20) for _ in range(LONG_RUNS.get(k, k % 4 + 1))]
    master = pa.table(
        {
            "k": [key_of(k, hashed) for k in keys],
            "value": np.arange(len(keys)),
            "text": [None if i % 5 == 0 else "m" * (i % 50) for i in range(len(keys))],
        }
    )
    # The stream gives the schema, and its longest row what the least memory is reckoned with:
    # memory is divided by what the first batch shows.
    stream = rows([KEYS - 1], LONGEST_NOTE, hashed)
    # Three bits of hash: different keys collide all the time.
    build = {"hash_bits": 3} if hashed else {}
    name = "hashed" if hashed else "numbers"
    return Case(name, pa.Table.from_batches([stream]), master, {"id": "k"}, build)


def rows(numbers: list[int | None], first: int, hashed: bool) -> pa.RecordBatch:
    events = list(range(first, first + len(numbers)))
    return pa.RecordBatch.from_pydict(
        {
            "id": pa.array(
                [key_of(n, hashed) for n in numbers], pa.string() if hashed else pa.int64()
            ),
            "event": pa.array(events, pa.int64()),
            "note": pa.array(
                [None if e % 3 == 0 else "n" * (e % (LONGEST_NOTE + 1)) for e in events],
                pa.string(),
            ),
        }
    )


@cache
def partners(hashed: bool) -> dict[Any, list[tuple[Any, ...]]]:
    found: dict[Any, list[tuple[Any, ...]]] = {}
    for row in case(hashed).master.to_pylist():
        found.setdefault(row["k"], []).append((row["value"], row["text"]))
    return found


class JoinMachine(RuleBasedStateMachine):
    """Drives one join; the subclass says which."""

    join_name: str

    @initialize(
        how=st.sampled_from(HOWS),
        hashed=st.booleans(),
        factor=st.sampled_from([1.0, 1.0, 1.05, 1.5, 10.0]),
        seed=st.integers(0, 3),
    )
    def open(self, how: str, hashed: bool, factor: float, seed: int) -> None:
        self.how, self.hashed, self.seed = how, hashed, seed
        self.make = named(self.join_name)
        chosen = case(hashed)
        self.memory = int(factor * self.least(how, hashed))
        self.path = workspace().master(chosen)
        self.schema = chosen.stream.schema
        self.refused: list[pa.RecordBatch] = []
        self.accepted: list[dict[str, Any]] = []
        self.taken: list[pa.RecordBatch] = []
        self.events = 0
        self.accepted_here = 0
        self.run = self.fresh()

    @classmethod
    @cache
    def least(cls, how: str, hashed: bool) -> int:
        return smallest_memory(named(cls.join_name), workspace(), case(hashed), how)

    def fresh(self) -> Run:
        join = self.make(
            self.path,
            on={"id": "k"},
            schema=self.schema,
            how=self.how,
            memory=self.memory,
            seed=self.seed,
        )
        self.accepted_here = 0
        return Run(join)

    @rule(
        numbers=st.lists(st.one_of(st.none(), st.integers(0, KEYS - 1)), max_size=12),
        copies=st.sampled_from([1, 1, 7, 40]),
    )
    def push(self, numbers: list[int | None], copies: int) -> None:
        batch = rows(numbers * copies, self.events, self.hashed)
        accepted = self.run.push(batch)
        self.accepted += batch.slice(0, accepted).to_pylist()
        self.accepted_here += accepted
        self.events += batch.num_rows

    @rule(times=st.integers(1, 5))
    def step(self, times: int) -> None:
        for _ in range(times):
            self.run.step()

    @rule()
    def take(self) -> None:
        self.run.take()

    @rule()
    def finish(self) -> None:
        self.run.finish()
        self.compare()

    @precondition(lambda self: self.accepted)
    @rule()
    def drop_finish(self) -> None:
        """A generator that is not used up leaves the rest where it is."""
        results = self.run.join.finish()
        batch = next(results, None)
        if batch is not None:
            self.run.batches.append(batch)
        self.run.look()

    @rule()
    def move(self) -> None:
        """Into a fresh join by way of a snapshot."""
        data = self.run.join.snapshot().to_bytes()
        self.run.look()
        self.run.join.close()
        taken = self.run.batches
        self.run = self.fresh()
        self.run.batches = taken
        self.run.join.restore(Snapshot.from_bytes(data))
        self.accepted_here = self.run.join.stats.rows_waiting

    @invariant()
    def every_row_is_somewhere(self) -> None:
        if hasattr(self, "run"):
            self.run.look()
            assert self.run.join.stats.rows_in == self.accepted_here

    def compare(self) -> None:
        found = partners(self.hashed)
        expected: list[tuple[Any, ...]] = []
        for row in self.accepted:
            stream = (row["id"], row["event"], row["note"])
            met = found.get(row["id"], [])
            if self.how in ("inner", "left"):
                expected += [stream + partner for partner in met]
            if (self.how == "left" and not met) or (self.how == "anti" and not met):
                expected.append(stream + ((None, None) if self.how == "left" else ()))
            if self.how == "semi" and met:
                expected.append(stream)
        actual = [
            row
            for batch in self.run.batches
            for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)
        ]
        assert Counter(actual) == Counter(expected)
        # What was compared need not be compared again.
        self.run.batches.clear()
        self.accepted.clear()

    def teardown(self) -> None:
        if hasattr(self, "run"):
            self.run.finish()
            self.compare()
            self.run.join.close()


@pytest.mark.parametrize("join", JOINS)
def test_random_calls(join: str) -> None:
    machine: Any = type(f"Machine_{join}", (JoinMachine,), {"join_name": join})
    state_machine = machine.TestCase
    state_machine.settings = settings(
        deadline=None,
        max_examples=examples(30),
        stateful_step_count=25,
        suppress_health_check=list(HealthCheck),
    )
    state_machine("runTest").runTest()
