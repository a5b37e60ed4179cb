"""`enrich`: a DataFrame joined with a master on disk, within a number of bytes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from semistream.core.budget import format_bytes, parse_bytes, type_of_size
from semistream.core.durations import parse_milliseconds
from semistream.core.errors import BudgetError, OptionError
from semistream.etl.unmatched import check_rule
from semistream.joins.binding import On
from semistream.joins.registry import make_join
from semistream.spark.drained import DrainedJoin
from semistream.spark.metrics import JOIN_NAME, new_accumulator
from semistream.spark.packing import PACKED, Packer
from semistream.spark.retry import retried
from semistream.spark.schemas import arrow_schema, spark_schema
from semistream.spark.versions import tidy
from semistream.spark.waiting import held_back
from semistream.spark.worker import MARK, Recipe, operator_bytes
from semistream.store.sql import Table, open_any

POOL = "SEMISTREAM_JOIN"
"""The variable in the environment of Python workers that makes a pool of its own."""

LETTERS = {"semistream": "dead letters"}
"""By this a column of dead letters is known to the next `enrich`."""

_JOINING = (DrainedJoin.__name__, "SurrogateTask", "DuplicateTask", "SimilarTask")
"""What the functions are called that hold operators, in Spark's plans."""

_numbers = itertools.count()


def enrich(
    df: DataFrame,
    master: str | Path | Table,
    on: On,
    *,
    how: str = "inner",
    algorithm: str = "auto",
    memory: type_of_size = "64MB",
    columns: Sequence[str] | None = None,
    max_wait: str | None = None,
    dead_letters: str | None = None,
    missing: str | None = None,
    retry_for: str | None = None,
    tasks: int | None = None,
    by_shard: bool = False,
    io: str = "buffered",
    **options: Any,
) -> DataFrame:
    """Join a batch or streaming DataFrame with a master, as `semistream.join` does.

    `master` is the path of a master that all executors can read; a stream also writes small notes
    in its directory `pins`, so that all tasks of a micro-batch, and a replay, see one version. Or
    it is a `Table` in a database, which the executors read by themselves; docs/databases.md says
    what they see of it while it changes.
    `on`, `how`, `algorithm`, `columns` and `options` are those of `semistream.join`. `memory` is
    the budget of the whole join, divided among the `tasks` that run at once (the session's default
    parallelism, if left out): bytes, "64MB" or "5%" of the master.

    With `max_wait=None` every micro-batch is joined completely within itself. With a duration such
    as "10 seconds" rows of a stream may wait, as Spark's state, until reading their part of the
    master is worth it, and never longer than that plus one trigger. In a run that ends
    (`trigger(availableNow=True)`) none waits, and those leave that an earlier run left waiting.

    `dead_letters` names an extra column of the results: rows that cannot be processed (a null key,
    strings too long for the memory) come out with the reason there, all others with a null. Without
    it a null key simply has no partner, and strings that are too long stop the query. A DataFrame
    that has the column already, from an `enrich` before, lets its dead rows pass.

    `missing` says, instead of `how`, what becomes of rows that the master does not know: "null"
    keeps them with nulls, "drop" leaves them out, "dead" makes them dead letters. With "retry" and
    `retry_for="1 hour"` rows of a stream wait, as Spark's state, until the master has their key,
    and are dead letters when the time is over; others do not wait for them.

    `by_shard` sends rows to tasks by the shards of the master, so that a task needs the index and
    the cache of its shard only. It costs a shuffle, and pays for large clusters.

    The schema of the result is known at once; nothing runs before an action or a query starts.
    """
    where = master if isinstance(master, Table) else str(Path(master).absolute())
    if isinstance(where, Table):
        where.check()
    if isinstance(where, Table) and (by_shard or max_wait is not None):
        raise OptionError(
            "by_shard and max_wait are for masters in files, and this is a table in a database",
            hint="leave them out, or build a master from the table",
        )
    how, rule = _rule(df, how, missing, retry_for, dead_letters, max_wait, by_shard)
    marks = {"mark": MARK} if rule in ("dead", "retry") else {}
    schema = arrow_schema(df.schema)
    wait_ms = None if max_wait is None else parse_milliseconds(max_wait, what="max_wait")
    with open_any(where, io=io) as opened:
        shards = len(opened.manifest.shards)
        parallel = parallel_tasks(df, tasks)
        limit = parse_bytes(memory, of=opened.data_bytes)
        operators = shards if by_shard else parallel
        share = limit // operators
        with open_any(where, io=io, shard=0) if by_shard else nullcontext(opened) as part:
            result = _checked(
                algorithm, part, operators, limit, on=on, schema=schema, how=how,
                memory=operator_bytes(share), columns=columns, **marks, **options,
            )  # fmt: skip
        version = opened.manifest.version
    if by_shard and wait_ms is not None:
        raise OptionError("by_shard does not go with max_wait", hint="leave one of them out")
    if wait_ms is not None and not df.isStreaming:
        raise OptionError(
            f"max_wait={max_wait!r} is for streams, and this DataFrame is not one",
            hint="leave max_wait out: a batch is joined completely anyway",
        )
    output, key_names = result
    output = pa.schema([field for field in output if field.name != MARK])
    if dead_letters is not None and _has_letters(df, dead_letters):
        output = pa.schema([field.with_nullable(True) for field in output])
    elif dead_letters is not None:
        if dead_letters in output.names:
            raise OptionError(
                f"dead_letters={dead_letters!r} is a column of the result already",
                hint="choose another name",
            )
        nullable = [field.with_nullable(True) for field in output]
        output = pa.schema([*nullable, pa.field(dead_letters, pa.string())])
    spark_output, arrow_output = spark_schema(output)
    if df.isStreaming and isinstance(where, str):
        tidy(df.sparkSession, where)
    if dead_letters is not None:
        spark_output[dead_letters].metadata = LETTERS
    recipe = Recipe(
        name=f"semistream-{next(_numbers)}",
        master=where,
        on=on,
        key_names=key_names,
        how=how,
        algorithm=algorithm,
        memory_bytes=share,
        columns=None if columns is None else tuple(columns),
        io=io,
        options=options,
        stream_schema=schema,
        output_schema=arrow_output,
        version=version,
        keep=max(shards // parallel, 1) if by_shard else 1,
        dead_letters=dead_letters,
        missing=rule,
        retry_for=retry_for,
    )
    return _planned(df, recipe, spark_output, parallel, shards if by_shard else None, wait_ms)


def _planned(
    df: DataFrame,
    recipe: Recipe,
    output: StructType,
    parallel: int,
    shards: int | None,
    wait_ms: int | None,
) -> DataFrame:
    """The plan: rows as they are, by shard, or when they have waited; then the join."""
    accumulator = new_accumulator(df.sparkSession.sparkContext, recipe.name)
    if recipe.missing == "retry":
        with own_workers(df):
            enriched = retried(df, recipe, accumulator, parallel, output)
        setattr(enriched, JOIN_NAME, recipe.name)
        return enriched
    if shards is not None:
        packer = Packer(recipe, tuple(range(shards)))
        rows = df.mapInArrow(packer, spark_schema(PACKED)[0]).repartitionById(shards, "part")
    elif wait_ms is not None:
        rows = held_back(df, recipe, accumulator, parallel, wait_ms)
    else:
        # No shuffle: rows are joined where they are.
        rows = df.coalesce(parallel)
    packed = shards is not None or wait_ms is not None
    join = DrainedJoin(recipe, accumulator, packed=packed, by_shard=shards is not None)
    with own_workers(df):
        enriched = rows.mapInArrow(join, output)
    setattr(enriched, JOIN_NAME, recipe.name)
    return enriched


def _rule(
    df: DataFrame,
    how: str,
    missing: str | None,
    retry_for: str | None,
    dead_letters: str | None,
    max_wait: str | None,
    by_shard: bool,
) -> tuple[str, str]:
    """The kind of join, and the rule for rows without a partner."""
    if missing is None:
        if retry_for is not None:
            raise OptionError("retry_for goes with missing='retry'", hint="add it, or drop this")
        return how, "null"
    check_rule(missing, retry_for)
    if how != "inner":
        raise OptionError(
            f"how={how!r} and missing={missing!r} say the same twice", hint="drop how"
        )
    if missing in ("dead", "retry") and dead_letters is None:
        raise OptionError(
            f"missing={missing!r} needs a column for the reason",
            hint='add dead_letters="problem"',
        )
    if missing == "retry":
        if not df.isStreaming:
            raise OptionError(
                "missing='retry' is for streams, and this DataFrame is not one",
                hint="use missing='dead'",
            )
        if by_shard or max_wait is not None:
            raise OptionError(
                "by_shard and max_wait do not go with missing='retry'", hint="drop it"
            )
    return ("inner" if missing == "drop" else "left"), missing


def _has_letters(df: DataFrame, name: str) -> bool:
    """Whether a DataFrame has the dead letters of an `enrich` before."""
    return name in df.columns and df.schema[name].metadata == LETTERS


def _checked(
    algorithm: str, master: Any, operators: int, limit: int, **options: Any
) -> tuple[pa.Schema, tuple[str, ...]]:
    """The output's schema and the stream's key columns, after everything was checked to fit."""
    try:
        with closing(make_join(algorithm, master, **options)) as operator:
            return operator.output_schema, operator.binding.key_names
    except BudgetError as error:
        raise BudgetError(
            f"memory of {format_bytes(limit)} is divided among {operators} operators, and "
            + error.message,
            hint=f"give {operators} times as much, use fewer tasks=, or build the master with "
            "shards= and use by_shard=True",
        ) from error


def parallel_tasks(df: DataFrame, tasks: int | None) -> int:
    """How many tasks run at once."""
    if tasks is None:
        return max(int(df.sparkSession.sparkContext.defaultParallelism), 1)
    if tasks < 1:
        raise OptionError(f"tasks={tasks} is not above zero", hint="leave it out")
    return tasks


@contextmanager
def own_workers(df: DataFrame) -> Iterator[None]:
    """Functions made in here run in Python workers that only joins use.

    Spark keeps a pool of workers per environment. In a pool of their own, joins find their
    operators again, and there are never more workers than tasks that run at once: the budget holds.
    A join of the results of another one runs in the same tasks, and gets the next pool.
    """
    plan = df._jdf.queryExecution().analyzed().toString()
    environment = df.sparkSession.sparkContext.environment
    environment[POOL] = str(sum(plan.count(one) for one in _JOINING))
    try:
        yield
    finally:
        del environment[POOL]
