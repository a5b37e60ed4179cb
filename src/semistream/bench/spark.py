"""`enrich` beside Spark's own stream-static joins, in one session, on the same stream.

The stream is a folder of Parquet files into which the benchmark links one micro-batch after the
other, so that it decides what each query has seen; when all were sent, it begins again. The sink is
a checksum: every column of every result is read, and nothing is written. All systems run once, as
long as later, before any is measured: the Java machine compiles during its first minute, which
takes up to a quarter of two processors. That says nothing of a stream that runs for days, and would
hurt whoever comes first. Then each goes through

1. *Warm-up*: two micro-batches, and more for as long as the measured part: caches fill, ours and
   others'.
2. *Measured part*: at least three micro-batches that lie ready, one after the other. The rate is
   the rows answered over the time that Spark's progress gives for these micro-batches, from the
   look at the source to the commit.
3. *Drain*: rows that wait leave, outside of the measurement.

All results from the first row to the last are then compared with DuckDB's join of the same files.
The checksum of both is computed by Spark; DuckDB only joins.
"""

from __future__ import annotations

import itertools
import os
import shutil
import statistics
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from semistream.bench.core import Told
from semistream.bench.masters import master_path, product_files, product_master
from semistream.bench.oracle import JOINED, ProductOracle
from semistream.bench.peers.base import RECORD, read_into_cache
from semistream.bench.peers.by_hand import LookupTask
from semistream.bench.peers.postgres import Postgres
from semistream.bench.peers.rocksdb import RocksDb
from semistream.core.budget import parse_bytes
from semistream.core.clock import Clock, SystemClock
from semistream.core.durations import parse_milliseconds
from semistream.core.errors import OptionError, QueryError, unknown_name
from semistream.core.stats import JoinStats
from semistream.spark.enrich import enrich
from semistream.spark.pipeline import failure
from semistream.spark.recorder import MicroBatch, Recorder, recorded
from semistream.spark.schemas import spark_schema
from semistream.spark.worker import settle
from semistream.store.manifest import PINS
from semistream.workloads import sale_schema, sales

KEY = "product_id"
CHECK = "check"
BUCKETS_PER_CORE = 4
LEAST_MEASURED = 3  # in all rounds together
FIRST_WARM_UP = 2
MOST_STREAM_ROWS = 6_000_000
FEWEST_BATCHES, MOST_BATCHES = 8, 80
LONGEST_BATCH_S = 600.0

SETTINGS = {
    "spark.driver.memory": "4g",
    # The hints decide which join Spark takes, not the sizes.
    "spark.sql.autoBroadcastJoinThreshold": "-1",
}
"""What a session for this benchmark has beside the usual settings."""


@dataclass(frozen=True)
class Tables:
    """What every system is given: the same products in the form that it reads."""

    master: Path
    sharded: Path
    products: DataFrame
    bucketed: DataFrame
    memory: str
    max_wait: str
    tasks: int
    memory_bytes: int = 0
    rocksdb: Path | None = None
    postgres: str | None = None


System = Callable[[DataFrame, Tables], DataFrame]


def _drained(stream: DataFrame, tables: Tables) -> DataFrame:
    return enrich(stream, tables.master, KEY, memory=tables.memory)


def _waiting(stream: DataFrame, tables: Tables) -> DataFrame:
    return enrich(stream, tables.master, KEY, memory=tables.memory, max_wait=tables.max_wait)


def _by_shard(stream: DataFrame, tables: Tables) -> DataFrame:
    return enrich(stream, tables.sharded, KEY, memory=tables.memory, by_shard=True)


def _sort_merge(stream: DataFrame, tables: Tables) -> DataFrame:
    return stream.hint("merge").join(tables.products, KEY)


def _shuffled_hash(stream: DataFrame, tables: Tables) -> DataFrame:
    # The hint chooses the side that is hashed: the small one.
    return stream.hint("shuffle_hash").join(tables.products, KEY)


def _broadcast(stream: DataFrame, tables: Tables) -> DataFrame:
    return stream.hint("broadcast").join(tables.products, KEY)


def _bucketed(stream: DataFrame, tables: Tables) -> DataFrame:
    return stream.hint("shuffle_hash").join(tables.bucketed, KEY)


def _identity(stream: DataFrame, tables: Tables) -> DataFrame:
    return stream.coalesce(tables.tasks).mapInArrow(_same, stream.schema)


def _identity_by_key(stream: DataFrame, tables: Tables) -> DataFrame:
    return stream.repartition(tables.tasks, KEY).mapInArrow(_same, stream.schema)


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    # As in our workers: else this would be no bound for what they do.
    settle()
    return batches


def _by_hand(stream: DataFrame, tables: Tables, store: str, place: str) -> DataFrame:
    task = LookupTask(store, place, tables.memory_bytes // tables.tasks)
    return stream.coalesce(tables.tasks).mapInArrow(task, spark_schema(JOINED)[0])


def _rocksdb(stream: DataFrame, tables: Tables) -> DataFrame:
    return _by_hand(stream, tables, "rocksdb", str(tables.rocksdb))


def _postgres(stream: DataFrame, tables: Tables) -> DataFrame:
    return _by_hand(stream, tables, "postgres", str(tables.postgres))


ROCKSDB, POSTGRES = BY_HAND = ("spark-rocksdb-lookup", "spark-postgres-lookup")
"""What people write by hand; they need the packages of the extra `peers`, and a server."""

SYSTEMS: dict[str, System] = {
    "semistream-drained": _drained,
    "semistream-waiting": _waiting,
    "spark-sort-merge": _sort_merge,
    "spark-shuffled-hash": _shuffled_hash,
    "spark-broadcast-stream": _broadcast,
    "spark-bucketed": _bucketed,
    "spark-identity": _identity,
    "spark-identity-by-key": _identity_by_key,
    "semistream-by-shard": _by_shard,
    ROCKSDB: _rocksdb,
    POSTGRES: _postgres,
}
"""What is compared. The identities join nothing: rows go to Python and come back, as they are or
after the shuffle by key that a join of shards needs."""

IDENTITY = "spark-identity"
IDENTITIES = (IDENTITY, "spark-identity-by-key")
BY_SHARD = "semistream-by-shard"

USUAL = tuple(name for name in SYSTEMS if name not in (IDENTITIES[1], BY_SHARD, *BY_HAND))
"""What is compared unless systems are named: by shard needs a master of its own."""


@dataclass(frozen=True)
class SparkOptions:
    """What is run. `memory` and `skew` are kept as they were written."""

    rows: int = 10_000_000
    batch_rows: tuple[int, ...] = (10_000, 100_000)
    memory: str = "5%"
    skew: float = 1
    systems: tuple[str, ...] = field(default_factory=lambda: USUAL)
    rounds: int = 3
    seconds: float = 6.0
    max_wait: str = "2 seconds"
    seed: int = 1

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise OptionError(f"a master of {self.rows} rows is not possible", hint="rows >= 1")
        for rows in self.batch_rows:
            if rows < 1:
                raise OptionError(f"a micro-batch of {rows} rows is not possible", hint="rows >= 1")
        if self.rounds < 1 or not 0 < self.seconds < float("inf"):
            raise OptionError(
                f"{self.rounds} rounds of {self.seconds} s are no measurement",
                hint="give at least one round, and the seconds that each is measured",
            )
        for name in self.systems:
            if name not in SYSTEMS:
                raise unknown_name("system", name, SYSTEMS)
        parse_bytes(self.memory, of=10**12)
        parse_milliseconds(self.max_wait, what="max_wait")

    @property
    def cells(self) -> int:
        """Systems times sizes of micro-batches."""
        return len(self.systems) * len(self.batch_rows)

    def batches(self, batch_rows: int) -> int:
        """Different micro-batches: Spark does no more than 20 in a second."""
        most = min(MOST_STREAM_ROWS // batch_rows, MOST_BATCHES, int(30 * self.seconds))
        return max(most, FEWEST_BATCHES)


@dataclass(frozen=True)
class SparkResult:
    """One system with one size of micro-batches; figures of the measured part.

    `rows_per_s` is the median of `rounds`, the other figures are of the round nearest to it.
    `batch_ms` is where Spark's time went in a micro-batch, on average, by the names of its progress
    (`triggerExecution` is all of it). `join_busy_ms` and `join_io_ms` are the time that the join's
    operators worked and waited for reads, summed over the tasks that run side by side.
    """

    system: str
    batch_rows: int
    rows_per_s: float
    verified: bool
    rows: int
    batches: int
    seconds: float
    batch_ms: dict[str, float]
    join_tasks: int
    join_busy_ms: float
    join_io_ms: float
    hit_share: float
    pages_per_row: float
    product_rows: int
    memory: str
    skew: float
    rounds: tuple[float, ...]

    @classmethod
    def of_rounds(cls, rounds: Sequence[SparkResult]) -> SparkResult:
        """The rounds of one cell as one result."""
        median = statistics.median(one.rows_per_s for one in rounds)
        return replace(
            min(rounds, key=lambda one: abs(one.rows_per_s - median)),
            rows_per_s=median,
            verified=all(one.verified for one in rounds),
            rounds=tuple(one.rows_per_s for one in rounds),
        )

    def to_dict(self) -> dict[str, object]:
        """A plain record for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Check:
    """Number, exclusive or and sum of the hashes of rows, in any order."""

    rows: int = 0
    mixed: int = 0
    total: int = 0

    def __add__(self, other: Check) -> Check:
        return Check(self.rows + other.rows, self.mixed ^ other.mixed, self.total + other.total)


def run_spark(
    options: SparkOptions,
    workdir: Path,
    session: SparkSession,
    *,
    tell: Told = lambda line: None,
    clock: Clock | None = None,
) -> Iterator[SparkResult]:
    """Run the grid, size by size; each cell is yielded after its last round.

    In a round all systems take their turns, so that a noisy machine hurts all alike.
    """
    clock = clock or SystemClock()
    workdir.mkdir(parents=True, exist_ok=True)
    tasks = int(session.sparkContext.defaultParallelism)
    session.sparkContext.setLogLevel("ERROR")
    tell(f"the master of {options.rows:,} rows, and the same as Parquet files for Spark")
    with product_master(workdir, options.rows, io="buffered"):
        pass
    shards = tasks if BY_SHARD in options.systems else 1
    with product_master(workdir, options.rows, shards=shards, io="buffered"):
        pass
    files = product_files(workdir, options.rows)
    memory_bytes = parse_bytes(options.memory, of=options.rows * RECORD.itemsize)
    tables = Tables(
        master_path(workdir, options.rows, seed=0),
        master_path(workdir, options.rows, seed=0, shards=shards),
        session.read.parquet(str(files)),
        _bucketed_table(session, files, options, BUCKETS_PER_CORE * tasks),
        options.memory,
        options.max_wait,
        tasks,
        memory_bytes,
    )
    by_hand = {ROCKSDB: RocksDb, POSTGRES: Postgres}
    kinds = [kind for name, kind in by_hand.items() if name in options.systems]
    stores = [tables.master, files, *(kind(workdir, options.rows).store for kind in kinds)]
    with (
        _stores(tables, options, workdir, tell) as tables,
        tempfile.TemporaryDirectory(
            dir=workdir, prefix="spark-", ignore_cleanup_errors=True
        ) as scratch,
    ):
        streams: dict[int, Stream] = {}
        with ProductOracle(options.rows, scratch=Path(scratch)) as oracle:
            for rows in options.batch_rows:
                tell(f"a stream of micro-batches of {rows:,} rows, and DuckDB's join of it")
                folder = Path(scratch) / f"stream-{rows}"
                streams[rows] = Stream.made(folder, options, rows, tasks, oracle, session)
        for system in dict.fromkeys(options.systems):
            tell(f"{system}, not measured yet")
            folder = Path(scratch) / f"{system}-before"
            measure(system, streams[options.batch_rows[0]], tables, options, folder, session, clock)
            shutil.rmtree(folder, ignore_errors=True)
        for rows in options.batch_rows:
            done: dict[str, list[SparkResult]] = {system: [] for system in options.systems}
            for turn, system in itertools.product(range(options.rounds), done):
                tell(
                    f"[round {turn + 1}/{options.rounds}] {system}, micro-batches of {rows:,} rows"
                )
                # So that no system is cold: what nobody asks for may go from the cache.
                for store in stores:
                    read_into_cache(store)
                folder = Path(scratch) / f"{system}-{rows}-{turn}"
                done[system].append(
                    measure(system, streams[rows], tables, options, folder, session, clock)
                )
                # Spark may still write there, about what it has ended: nobody else uses it.
                shutil.rmtree(folder, ignore_errors=True)
                # Notes of a query that will not be started again.
                shutil.rmtree(tables.master / PINS, ignore_errors=True)
                shutil.rmtree(tables.sharded / PINS, ignore_errors=True)
                if len(done[system]) == options.rounds:
                    yield SparkResult.of_rounds(done[system])


@contextmanager
def _stores(tables: Tables, options: SparkOptions, workdir: Path, tell: Told) -> Iterator[Tables]:
    """The stores that lookups by hand ask, built where they are not there, and served."""
    if ROCKSDB in options.systems:
        rocksdb = RocksDb(workdir, options.rows)
        tell(f"{rocksdb.name}: its store")
        rocksdb.build()
        tables = replace(tables, rocksdb=rocksdb.store)
    if POSTGRES not in options.systems:
        yield tables
        return
    postgres = Postgres(workdir, options.rows)
    tell(f"{postgres.name}: its store")
    postgres.build()
    with postgres.serve(tables.memory_bytes // 2) as server:
        yield replace(tables, postgres=server.uri)


def _bucketed_table(
    session: SparkSession, files: Path, options: SparkOptions, buckets: int
) -> DataFrame:
    """The products as a table that is bucketed by the key, written where it is not there."""
    name = f"semistream_products_{options.rows}_{buckets}"
    path = files.with_name(f"{files.stem}-{buckets}.bucketed")
    if "spark-bucketed" not in options.systems:
        return session.read.parquet(str(files))
    session.sql(f"DROP TABLE IF EXISTS {name}")
    rows = session.read.parquet(str(files))
    if (path / "_SUCCESS").exists():
        session.sql(
            f"CREATE TABLE {name} ({', '.join(f'{n} {t}' for n, t in rows.dtypes)}) USING parquet "
            f"CLUSTERED BY ({KEY}) SORTED BY ({KEY}) INTO {buckets} BUCKETS LOCATION '{path}'"
        )
    else:
        shutil.rmtree(path, ignore_errors=True)
        # One task for each bucket, so that a bucket is one file, and sorted.
        writer = rows.repartition(buckets, KEY).write.bucketBy(buckets, KEY).sortBy(KEY)
        writer.option("path", str(path)).saveAsTable(name)
    return session.table(name)


@dataclass(frozen=True)
class Stream:
    """Micro-batches of sales in files, and the checks of what becomes of each."""

    batch_rows: int
    files: Sequence[Sequence[Path]]
    sent: Sequence[Check]
    joined: Sequence[Check]

    @classmethod
    def made(
        cls,
        folder: Path,
        options: SparkOptions,
        batch_rows: int,
        parts: int,
        oracle: ProductOracle,
        session: SparkSession,
    ) -> Stream:
        """Write the files, one for each task, and let DuckDB join them."""
        (folder / "joined").mkdir(parents=True)
        (folder / "sent").mkdir()
        files: list[list[Path]] = []
        for number in range(options.batches(batch_rows)):
            batch = sales(
                batch_rows,
                products=options.rows,
                skew=options.skew,
                start=number * batch_rows,
                seed=options.seed,
            ).read_all()
            pq.write_table(
                pa.Table.from_batches(oracle.joined(batch), schema=JOINED),
                folder / "joined" / f"{number:04}.parquet",
            )
            cuts = [batch_rows * part // parts for part in range(parts + 1)]
            files.append([])
            for part, (start, end) in enumerate(itertools.pairwise(cuts)):
                file = folder / "sent" / f"{number:04}-{part:02}.parquet"
                pq.write_table(batch.slice(start, end - start), file)
                moment = 1_000_000_000 + number * parts + part  # Spark takes files by their age
                os.utime(file, (moment, moment))
                files[-1].append(file)
        joined = _checks(session.read.parquet(str(folder / "joined")), batch_rows)
        shutil.rmtree(folder / "joined")
        return cls(
            batch_rows,
            files,
            _checks(session.read.parquet(str(folder / "sent")), batch_rows),
            joined,
        )

    def frame(self, folder: Path, session: SparkSession) -> DataFrame:
        """The files that are put into a folder as a stream, one micro-batch at a time."""
        folder.mkdir()
        reader = session.readStream.schema(spark_schema(sale_schema())[0])
        return reader.option("maxFilesPerTrigger", len(self.files[0])).parquet(str(folder))

    def send(self, folder: Path, start: int, end: int) -> None:
        """Put micro-batches start .. end - 1 into the folder."""
        for number in range(start, end):
            for file in self.files[number % len(self.files)]:
                (folder / f"{number}-{file.name}").hardlink_to(file)

    def expected(self, batches: int, *, joined: bool) -> Check:
        """The check of all results of the first micro-batches, or of the rows sent."""
        checks = self.joined if joined else self.sent
        return sum((checks[number % len(checks)] for number in range(batches)), Check())


_HASH = "semistream_hash"
_CHECKS = (
    "count(*) AS rows",
    f"bit_xor({_HASH}) AS mixed",
    # 40 of the bits: the sum of all would overflow.
    f"sum(shiftright({_HASH}, 24)) AS total",
)


def _hashed(rows: DataFrame) -> DataFrame:
    names = [name for name in JOINED.names if name in rows.columns]
    return rows.select(F.xxhash64(*names).alias(_HASH))


def _checks(rows: DataFrame, batch_rows: int) -> list[Check]:
    """The checks of every micro-batch of rows that carry their sale's number."""
    names = [name for name in JOINED.names if name in rows.columns]
    hashed = rows.select(
        F.floor(F.col("sale_id") / batch_rows).alias("batch"), F.xxhash64(*names).alias(_HASH)
    )
    found = {
        row["batch"]: row for row in hashed.groupBy("batch").agg(*map(F.expr, _CHECKS)).collect()
    }
    return [
        Check(found[batch]["rows"], found[batch]["mixed"], found[batch]["total"])
        for batch in sorted(found)
    ]


def measure(
    system: str,
    stream: Stream,
    tables: Tables,
    options: SparkOptions,
    folder: Path,
    session: SparkSession,
    clock: Clock,
) -> SparkResult:
    """Run one system: warm-up, measured part, drain."""
    folder.mkdir()
    results = SYSTEMS[system](stream.frame(folder / "in", session), tables)
    checked = _hashed(results).observe(CHECK, *map(F.expr, _CHECKS))
    with recorded(session, clock) as recorder:
        query = (
            checked.writeStream.format("noop")
            .option("checkpointLocation", str(folder / "checkpoint"))
            .start()
        )
        try:
            run = _Run(query, recorder, stream, folder / "in", clock)
            run.feed(FIRST_WARM_UP)
            run.feed(_fitting(options.seconds, run.last_s))
            before = len(recorder.batches)
            least = -(-LEAST_MEASURED // options.rounds)
            run.feed(max(_fitting(options.seconds, run.last_s), least))
            measured = recorder.batches[before:]
            expected = stream.expected(run.sent, joined=system not in IDENTITIES)
            verified = run.drained(expected.rows, options.max_wait) == expected
        finally:
            query.stop()
    return _result(system, stream, measured, verified, options)


def _fitting(seconds: float, batch_s: float) -> int:
    """How many micro-batches take about this time."""
    return int(seconds / max(batch_s, 1e-2))


class _Run:
    """A query that is fed micro-batch by micro-batch."""

    def __init__(
        self, query: StreamingQuery, recorder: Recorder, stream: Stream, folder: Path, clock: Clock
    ) -> None:
        self._query = query
        self._recorder = recorder
        self._stream = stream
        self._folder = folder
        self._clock = clock
        self._pause = threading.Event()
        self.sent = 0
        self.last_s = 0.0

    def feed(self, count: int) -> None:
        """Send micro-batches, and wait until they have been taken in."""
        self._stream.send(self._folder, self.sent, self.sent + count)
        self.sent += count
        if not self._until(
            lambda: len(self._with_rows()) >= self.sent, LONGEST_BATCH_S * max(count, 1)
        ):
            raise QueryError(
                f"{count} micro-batches were not done in {LONGEST_BATCH_S * count:.0f} s",
                hint="give fewer --rows, or leave this system out with --systems",
            )
        self.last_s = self._with_rows()[-1].seconds

    def drained(self, rows: int, max_wait: str) -> Check:
        """The check of all results, after those that are still to come."""
        longest_s = 30 + 2 * parse_milliseconds(max_wait, what="max_wait") / 1000
        self._until(lambda: self._seen().rows >= rows, longest_s)
        return self._seen()

    def _with_rows(self) -> list[MicroBatch]:
        return [one for one in self._recorder.batches if one.rows_in]

    def _seen(self) -> Check:
        return sum((_check(one) for one in self._recorder.batches), Check())

    def _until(self, condition: Callable[[], bool], longest_s: float) -> bool:
        start_ns = self._clock.now_ns()
        while not condition():
            error = failure(self._query)
            if error is not None:
                raise error
            if (self._clock.now_ns() - start_ns) / 1e9 > longest_s:
                return False
            self._pause.wait(0.05)
        return True


def _check(batch: MicroBatch) -> Check:
    seen = batch.observed.get(CHECK)
    if not seen or not seen["rows"]:
        return Check()
    return Check(seen["rows"], seen["mixed"], seen["total"])


def _result(
    system: str,
    stream: Stream,
    measured: Sequence[MicroBatch],
    verified: bool,
    options: SparkOptions,
) -> SparkResult:
    rows = sum(_check(one).rows for one in measured)
    seconds = sum(one.seconds for one in measured)
    did = JoinStats.total(one.stats.join for one in measured)
    names = sorted({name for one in measured for name in one.durations_ms})
    count = len(measured)
    return SparkResult(
        system=system,
        batch_rows=stream.batch_rows,
        rows_per_s=rows / seconds,
        verified=verified,
        rows=rows,
        batches=count,
        seconds=seconds,
        batch_ms={
            name: statistics.fmean(one.durations_ms.get(name, 0) for one in measured)
            for name in names
        },
        join_tasks=max(one.stats.tasks for one in measured),
        join_busy_ms=did.time_busy_s * 1000 / count,
        join_io_ms=did.time_io_s * 1000 / count,
        hit_share=did.hit_share,
        pages_per_row=did.pages_per_row,
        product_rows=options.rows,
        memory=options.memory,
        skew=options.skew,
        rounds=(rows / seconds,),
    )
