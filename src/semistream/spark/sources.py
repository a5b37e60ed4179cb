"""The workload generator as a source of Spark: `format("semistream-workload")`.

An offset is the number of the next sale. What lies between two offsets is a pure function of the
options, and any part of it is made without what comes before it: a micro-batch that is computed
again has the same rows, on any machine.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from semistream.core.clock import Clock, SystemClock
from semistream.core.errors import OptionError, unknown_name
from semistream.workloads import sale_schema, sales
from semistream.workloads.arrivals import Arrivals

WORKLOAD = "semistream-workload"
LEAST_ROWS_PER_PARTITION = 10_000
ARROW_BATCH_ROWS = 65_536

_SKEWS = {"zipf": 1.0, "uniform": 0.0}


def register(spark: SparkSession) -> None:
    """Make `spark.read` and `spark.readStream` know the format `semistream-workload`."""
    spark.dataSource.register(WorkloadSource)


@dataclass(frozen=True)
class Workload:
    """The options of the source.

    `rows` ends the stream; without it, it goes on for ever. A micro-batch has at most
    `batch_rows` rows. With a `rate`, rows arrive at that many per second, evenly or, if `bursty`,
    in bursts around it; without one they are all there at once. `distribution` is zipf with
    exponent `skew` or uniform over the keys of `products` products, `placement` and `missing` as
    in `semistream.workloads.sales` (`moving` is the SSIJ paper's temporal locality), `pareto` as in
    `bursty_counts`. `partitions` is the number of tasks that make a micro-batch.
    """

    distribution: str = "zipf"
    skew: float | None = None
    products: int = 1_000_000
    placement: str = "random"
    missing: float = 0.0
    seed: int = 1
    rows: int | None = None
    batch_rows: int = 100_000
    rate: float | None = None
    bursty: bool = False
    pareto: float | None = None
    partitions: int | None = None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Workload:
        """From Spark's options, in which case does not matter."""
        known = {field.name: field for field in fields(cls)}
        values = {}
        for name, text in options.items():
            if name.lower() not in known:
                raise unknown_name(f"option of {WORKLOAD}", name, known)
            kind = str(known[name.lower()].type).removesuffix(" | None")
            values[name.lower()] = _parsed(name, text, kind)
        workload = cls(**values)
        workload.check()
        return workload

    def check(self) -> None:
        """Raise for values that make no sense, before anything runs."""
        if self.distribution not in _SKEWS:
            raise unknown_name("distribution", self.distribution, _SKEWS)
        if self.distribution == "uniform" and self.skew:
            raise OptionError(
                f"a uniform distribution has no skew, and skew={self.skew} was given",
                hint='leave one of them out, or say distribution="zipf"',
            )
        if self.skew is not None and not 0 <= self.skew < float("inf"):
            raise OptionError(f"the Zipf exponent is skew={self.skew}", hint="a number >= 0")
        for name in ("batch_rows", "partitions"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise OptionError(f"{name}={value} is not above zero", hint="give at least 1")
        if self.rows is not None and self.rows < 0:
            raise OptionError(f"rows={self.rows} is negative", hint="leave it out for no end")
        if self.bursty and self.rate is None:
            raise OptionError("bursty needs a rate", hint='add .option("rate", 50000)')
        self.arrivals()
        self.part(0, 0)

    def arrivals(self) -> Arrivals | None:
        """When rows arrive; None if all are there at once."""
        if self.rate is None:
            return None
        return Arrivals(self.rate, bursty=self.bursty, pareto=self.pareto, seed=self.seed)

    def part(self, start: int, end: int) -> pa.RecordBatchReader:
        """Sales number start .. end - 1."""
        return sales(
            end - start,
            start=start,
            products=self.products,
            skew=_SKEWS[self.distribution] if self.skew is None else self.skew,
            placement=self.placement,  # type: ignore[arg-type]  # sales checks it
            missing=self.missing,
            seed=self.seed,
            batch_rows=ARROW_BATCH_ROWS,
        )

    def split(self, start: int, end: int) -> list[Range]:
        """The range in about equal parts, one a task."""
        rows = end - start
        parts = self.partitions or min(-(-rows // LEAST_ROWS_PER_PARTITION), os.cpu_count() or 1)
        cuts = [start + rows * part // max(parts, 1) for part in range(parts + 1)]
        return [Range(a, b) for a, b in pairwise(cuts) if a < b]


def _parsed(name: str, text: str, kind: str) -> Any:
    try:
        return _PARSERS[kind](text)
    except (ValueError, KeyError):
        raise OptionError(
            f"option {name}={text!r} is not {_KIND_NAMES[kind]}",
            hint=f'for example .option("{name}", {_KIND_EXAMPLES[kind]})',
        ) from None


def _whole(text: str) -> int:
    return int(text.replace("_", ""))


_PARSERS: dict[str, Callable[[str], Any]] = {
    "str": str,
    "int": _whole,
    "float": float,
    "bool": lambda text: {"true": True, "false": False}[text.lower()],
}
_KIND_NAMES = {"str": "text", "int": "a whole number", "float": "a number", "bool": "true or false"}
_KIND_EXAMPLES = {"str": '"zipf"', "int": "100000", "float": "1.0", "bool": "True"}


def rows_behind(latest: str | None, end: str | None) -> int | None:
    """Rows between two offsets of the workload, as a query's progress writes them; else None."""
    try:
        return int(json.loads(latest or "")["sale"]) - int(json.loads(end or "")["sale"])
    except (ValueError, KeyError, TypeError):
        return None


class Range(InputPartition):
    """Sales that one task makes."""

    def __init__(self, start: int, end: int) -> None:
        super().__init__((start, end))
        self.start = start
        self.end = end


class WorkloadSource(DataSource):
    """The papers' stream of sales, as Arrow batches; see `Workload` for the options."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        self.workload = Workload.of(options)

    @classmethod
    def name(cls) -> str:
        """What `format` calls it."""
        return WORKLOAD

    def schema(self) -> StructType:
        """Product, quantity, and the sale's number."""
        return from_arrow_schema(sale_schema())

    def reader(self, schema: StructType) -> WorkloadReader:
        """For `spark.read`."""
        return WorkloadReader(self.workload)

    def streamReader(self, schema: StructType) -> WorkloadStreamReader:
        """For `spark.readStream`."""
        return WorkloadStreamReader(self.workload)


class WorkloadReader(DataSourceReader):
    """All rows at once."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        if workload.rows is None:
            raise OptionError(
                f"{WORKLOAD} has no end, and spark.read needs one",
                hint='add .option("rows", 1000000), or use spark.readStream',
            )

    def partitions(self) -> Sequence[Range]:
        """One for each task."""
        return self.workload.split(0, self.workload.rows or 0)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The sales of a partition."""
        assert isinstance(partition, Range)
        yield from self.workload.part(partition.start, partition.end)


class WorkloadStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Rows as they arrive.

    With a rate, the clock runs from the first question on, and what arrived before (a restart
    begins at the checkpoint's offset) counts as if no time had passed in between.
    """

    def __init__(self, workload: Workload, clock: Clock | None = None) -> None:
        self.workload = workload
        self._clock = clock or SystemClock()
        self._arrivals = workload.arrivals()
        self._began_ns: int | None = None
        self._before_ns = 0

    def initialOffset(self) -> dict[str, int]:
        """The first sale."""
        return {"sale": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        """A micro-batch has at most `batch_rows` rows."""
        return ReadMaxRows(self.workload.batch_rows)

    def prepareForTriggerAvailableNow(self) -> None:
        """All rows are there at once, whatever the rate."""
        if self.workload.rows is None:
            raise OptionError(
                f"{WORKLOAD} has no end, so that not all of it can be available now",
                hint='add .option("rows", 1000000), or use another trigger',
            )
        self._arrivals = None

    def latestOffset(self, start: Mapping[str, int], limit: ReadLimit) -> dict[str, int]:
        """As far as rows have arrived, the limit allows, and there are any."""
        ends = [] if self.workload.rows is None else [self.workload.rows]
        if isinstance(limit, ReadMaxRows):
            ends.append(start["sale"] + limit.max_rows)
        if self._arrivals is not None:
            ends.append(self._arrived(self._arrivals, start["sale"]))
        if not ends:
            ends.append(start["sale"] + self.workload.batch_rows)
        return {"sale": max(min(ends), start["sale"])}

    def reportLatestOffset(self) -> dict[str, int] | None:
        """How far rows have arrived, for the query's progress; None where all are there at once."""
        if self._arrivals is None:
            return None
        arrived = self._arrived(self._arrivals, 0)
        return {"sale": arrived if self.workload.rows is None else min(arrived, self.workload.rows)}

    def _arrived(self, arrivals: Arrivals, position: int) -> int:
        now = self._clock.now_ns()
        if self._began_ns is None:
            self._began_ns = now
            self._before_ns = arrivals.moment_of(position)
        return arrivals.rows_at(self._before_ns + now - self._began_ns)

    def partitions(self, start: Mapping[str, int], end: Mapping[str, int]) -> Sequence[Range]:
        """The sales between two offsets, for the tasks."""
        return self.workload.split(start["sale"], end["sale"])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The sales of a partition."""
        assert isinstance(partition, Range)
        yield from self.workload.part(partition.start, partition.end)
