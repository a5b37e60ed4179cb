"""`overload=`: what a join does when its stream is faster than it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from semistream.core.budget import MemoryBudget
from semistream.core.errors import OptionError, unknown_name
from semistream.joins.binding import Binding
from semistream.joins.operator import Operator
from semistream.shed import POLICIES, Policy
from semistream.shed.operator import SHARE, SheddingJoin
from semistream.shed.policy import Numbers
from semistream.shed.side_output import ShedTo, SideOutput
from semistream.store.counting import ENTRY_BYTES, KeyCounts
from semistream.store.file import FileMaster

BLOCK = "block"
SHED = "shed:"

COUNTS_SHARE = 2
"""What is known of keys takes at most this part of what is kept for arriving rows."""

Maker = Callable[[pa.Schema, int], Operator]
"""Makes the join for a stream's schema and so many bytes."""


@dataclass(frozen=True)
class Overload:
    """What was asked for; a plain join blocks, and has none of it."""

    policy: type[Policy]
    shed_to: ShedTo | None
    rows: int | None
    weights: str | None

    @classmethod
    def of(
        cls,
        overload: str,
        schema: pa.Schema,
        shed_to: ShedTo | None,
        rows: int | None,
        weights: str | None,
    ) -> Overload | None:
        """Check the options; None if the join is to block."""
        known = [BLOCK, *(SHED + name for name in POLICIES)]
        if overload not in known:
            raise unknown_name("way to treat overload", str(overload), known)
        if overload == BLOCK:
            given = {"shed_to": shed_to, "shed_rows": rows, "weights": weights}
            for name, value in given.items():
                if value is not None:
                    raise OptionError(
                        f"{name} is given, and overload={BLOCK!r} sheds nothing",
                        hint=f'give overload="{known[1]}" or another way to shed',
                    )
            return None
        policy = POLICIES[overload.removeprefix(SHED)]
        if rows is not None and rows < 1:
            raise OptionError(f"shed_rows={rows} is not above zero")
        if weights is not None and not policy.weighs:
            able = ", ".join(SHED + name for name, one in POLICIES.items() if one.weighs)
            raise OptionError(
                f"{overload!r} keeps no sample, so rows have no weights", hint=f"use {able}"
            )
        if weights is not None and weights in schema.names:
            raise OptionError(
                f"weights={weights!r} is a column of the stream", hint="give another name"
            )
        return cls(policy, shed_to, rows, weights)

    def join(
        self, make: Maker, binding: Binding, master: FileMaster, memory: int, seed: int
    ) -> SheddingJoin:
        """The join that `make` makes, behind what sheds."""
        schema = binding.stream_schema
        budget = MemoryBudget(memory, owner="shedding")
        side_output = SideOutput.of(self.shed_to, schema, SHED + self.policy.name)
        results = None
        if self.policy.needs_results:
            results = _results(self.policy, binding, master, budget)
        inner = schema
        if self.weights is not None:
            inner = schema.append(pa.field(self.weights, pa.float64(), nullable=False))
        return SheddingJoin(
            lambda size: make(inner, size),
            self.policy(seed),
            side_output,
            schema,
            budget,
            results=results,
            rows=self.rows,
            weights=self.weights,
        )


def _results(
    policy: type[Policy], binding: Binding, master: FileMaster, budget: MemoryBudget
) -> Callable[[pa.RecordBatch], Numbers]:
    """How many results stream rows will have, by how often their keys occur in the master."""
    if not binding.key_names or binding.condition is not None:
        raise OptionError(
            f"{SHED + policy.name!r} must know how many partners rows have, and a condition other "
            "than equal keys does not tell",
            hint=f"use {SHED}keep or {SHED}sample",
        )
    room = budget.limit_bytes // SHARE // COUNTS_SHARE
    counts = KeyCounts.of(master, room // ENTRY_BYTES)
    budget.set("key counts", counts.size_bytes)
    how = binding.how

    def results(batch: pa.RecordBatch) -> Numbers:
        keys, _ = binding.keys(batch)
        valid = keys.valid != 0
        if how == "anti":
            # Keys that are not listed may be in the master or not.
            return np.where(valid & counts.lists(keys.key64), 0.0, 1.0)
        partners = np.where(valid, counts.rows_of(keys.key64), 0.0)
        if how == "inner":
            return partners
        return np.maximum(partners, 1.0) if how == "left" else np.minimum(partners, 1.0)

    return results
