"""All joins by name."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

import pyarrow as pa

from semistream.core.budget import MemoryBudget, parse_bytes, type_of_size
from semistream.core.clock import Clock, SystemClock
from semistream.core.conditions import Condition
from semistream.core.errors import OptionError, unknown_name
from semistream.joins.ameshjoin import AMeshJoin
from semistream.joins.binding import Binding, On
from semistream.joins.cachejoin import CacheJoin
from semistream.joins.cachejoin2 import CacheJoin2
from semistream.joins.cmeshjoin import CMeshJoin
from semistream.joins.hybridjoin import HybridJoin
from semistream.joins.hybridjoin2 import HybridJoin2
from semistream.joins.inlj import IndexNestedLoopJoin
from semistream.joins.memoryjoin import MemoryJoin
from semistream.joins.meshjoin import MeshJoin
from semistream.joins.operator import Operator
from semistream.joins.optimisedxhybridjoin import OptimisedXHybridJoin
from semistream.joins.overload import BLOCK, Overload
from semistream.joins.parallel import ParallelJoin, has_companion, threads_for
from semistream.joins.partitionedjoin import PartitionedJoin
from semistream.joins.rmeshjoin import RMeshJoin
from semistream.joins.ssbj import SemiStreamBalancedJoin
from semistream.joins.sscj import Sscj
from semistream.joins.ssij import SemiStreamedIndexJoin
from semistream.joins.sweepjoin import SweepJoin
from semistream.joins.xhybridjoin import XHybridJoin
from semistream.shed.side_output import ShedTo
from semistream.store.file import FileMaster, open_master

JOINS: dict[str, type[Operator]] = {
    join.name: join
    for join in (
        IndexNestedLoopJoin,
        MeshJoin,
        AMeshJoin,
        RMeshJoin,
        CMeshJoin,
        PartitionedJoin,
        HybridJoin,
        HybridJoin2,
        XHybridJoin,
        OptimisedXHybridJoin,
        CacheJoin,
        CacheJoin2,
        Sscj,
        SemiStreamedIndexJoin,
        SemiStreamBalancedJoin,
        SweepJoin,
        MemoryJoin,
    )
}

DISK_JOINS = tuple(name for name in JOINS if name != MemoryJoin.name)
"""Joins with masters larger than memory."""

DEFAULT = "sweepjoin"
"""What `auto` is, unless the cost models favour another join."""

DEFAULT_WITH_CONDITION = "meshjoin"
"""What `auto` is under a condition other than equal keys."""


_auto: list[type[Operator]] = []


def use_for_auto(kind: type[Operator]) -> None:
    """Have `auto` made by this class, which knows the cost models; joins do not."""
    _auto[:] = [kind]


def list_joins() -> list[str]:
    """The names that `make_join` and `join` take."""
    return [*JOINS, "auto"]


def make_join(
    name: str,
    master: Any,
    *,
    on: On | None = None,
    schema: pa.Schema,
    how: str = "inner",
    memory: type_of_size = "64MB",
    columns: Any = None,
    condition: Condition | None = None,
    mark: str | None = None,
    io: str = "buffered",
    clock: Clock | None = None,
    seed: int = 0,
    overload: str = BLOCK,
    shed_to: ShedTo | None = None,
    shed_rows: int | None = None,
    weights: str | None = None,
    threads: int | None = 1,
    **options: Any,
) -> Operator | Any:  # Any: who asks for it gets a SheddingJoin or a ParallelJoin
    """The operator `name` for a stream of `schema` and a `master` (a path or an open one).

    Partners have equal keys (`on`), or meet a `condition`, or both. `mark` names a further column
    of a left join's results, true where a row has a partner. `max_wait` bounds how long a row
    waits: "500 ms", or seconds.

    `overload` says what happens when rows come faster than they are joined. "block": `push` refuses
    them, and the stream waits. "shed:keep", "shed:sample", "shed:topw", "shed:cluster": `push`
    takes all, and of the rows that came between two steps the join gets `shed_rows` at most (by
    default as many as an eighth of the memory holds), chosen by that policy; the others go to
    `shed_to`, a file or a function, to be joined later. `weights` names a column of the results
    that says for how many rows each stands, for the two policies that sample.

    With `threads` the keys are divided among so many joins that work side by side, in one memory;
    None are as many as there are processors, if the memory suffices and the first batch is not
    small; where one joins, another copies pages for it.
    """
    if name != "auto" and name not in JOINS:
        raise unknown_name("join", name, list_joins())
    default = DEFAULT if condition is None else DEFAULT_WITH_CONDITION
    kind = JOINS[default if name == "auto" else name]
    for option in options:
        if option not in _options_of(kind):
            raise unknown_name(f"option of {kind.name}", option, _options_of(kind))
    if condition is not None and not kind.takes_conditions:
        takers = ", ".join(join.name for join in JOINS.values() if join.takes_conditions)
        raise OptionError(
            f"{kind.name} joins equal keys only and takes no condition",
            hint=f"use one of {takers}",
        )
    if name == "auto" and condition is None and _auto:
        kind = _auto[0]
    shedding = Overload.of(overload, schema, shed_to, shed_rows, weights)
    opened = master if isinstance(master, FileMaster) else open_master(master, io=io)
    size = parse_bytes(memory, of=opened.data_bytes)
    options |= {"clock": clock or SystemClock(), "seed": seed}

    def bind(stream: pa.Schema) -> Binding:
        return Binding.of(stream, opened, on, how, columns, condition, mark)

    def make(stream: pa.Schema, part: FileMaster, limit_bytes: int) -> Operator:
        budget = MemoryBudget(limit_bytes, owner=kind.name)
        companion = has_companion(threads, part)
        return kind(part, bind(stream), budget, companion=companion, **options)

    prevented = "a join that sheds rows" if shedding is not None else None
    if condition is not None:
        prevented = "a condition other than equal keys"
    count = threads_for(threads, opened, size, prevented)
    if count > 1:
        budget = MemoryBudget(size, owner=kind.name)
        return ParallelJoin(
            partial(make, schema), opened, bind(schema), budget, count, may_be_one=threads is None
        )
    if shedding is None:
        return make(schema, opened, size)
    return shedding.join(
        lambda stream, limit_bytes: make(stream, opened, limit_bytes),
        bind(schema), opened, size, seed,
    )  # fmt: skip


def _options_of(kind: type[Operator]) -> set[str]:
    """The options that an algorithm has of its own."""
    found = {
        parameter.name
        for part in kind.__mro__
        if "__init__" in vars(part)
        for parameter in inspect.signature(vars(part)["__init__"]).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    return found - {"clock", "seed", "companion"}
