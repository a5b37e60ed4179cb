"""Kills streaming queries at seeded random moments and goes on from their checkpoints.

At the end the sinks must hold exactly what DuckDB's join of everything sent gives: no row lost,
none twice. By hand:

    python tests/spark/crash.py --kills 20 --seed 3

A child process runs one query for each case, a sink and a mode of `enrich`. It is killed by -9 with
its Java process, some lives while they still recover, most after they have begun to move, and
started again until every sink has all its rows.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

import semistream as ss
from semistream.core.errors import SourceError
from semistream.spark import enrich, local_session, postgres_sink, read_sink, register, stats
from semistream.spark.sinks import connect
from semistream.testing.postgres import PostgresServer
from semistream.workloads import products, sales

CASES = ("files-drained", "files-waiting", "postgres-drained", "postgres-waiting")

PRODUCTS = 40_000  # so many that rows do wait for others that need their pages
REPEATED = 500
"""So many products are in the master twice."""

SALE_TYPES = "product_id bigint, quantity int, sale_id bigint"
BATCH_ROWS = 2000
BATCHES_PER_LIFE = 6
SEED = 11
MISSING = 0.1
MAX_WAIT = "2 seconds"
SLOW_MACHINE = "Python worker failed to connect back"
"""Spark gives a new worker ten seconds, which cannot be set. Such a query is started again."""

UP, MOVING, DONE = "up", "moving", "done"
LONGEST_LIFE_S = 300
LONGER_PER_KILL_S = 30
"""The last life has to do what the killed ones left, which may be almost all of it."""


@dataclass(frozen=True)
class Job:
    """What the child runs; handed to it as JSON."""

    folder: str
    postgres: str
    cases: tuple[str, ...]
    source: str
    cores: int
    rows: int
    expected: int = 0

    @property
    def master(self) -> Path:
        return Path(self.folder) / "master"

    @property
    def sent(self) -> Path:
        return Path(self.folder) / "sent"

    @property
    def waited(self) -> Path:
        """Is there once rows were seen to wait."""
        return Path(self.folder) / "waited"

    def sink(self, case: str) -> Path:
        return Path(self.folder) / case / "out"

    def checkpoint(self, case: str) -> Path:
        return Path(self.folder) / case / "checkpoint"


def table_of(case: str) -> str:
    return case.replace("-", "_")


# -------------------------------------------------------------------------------------- the child


def run_child(job: Job) -> None:
    """Run the queries until every sink is complete; says on standard output how far it is."""
    spark = local_session(
        "crash",
        cores=job.cores,
        # A short life is spent better than on compiling Java well. The first compiler alone has
        # room for 48 MB of code, which the last life fills; then nothing is compiled any more.
        spark_driver_extraJavaOptions="-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m "
        "-XX:+UseSerialGC",
    )
    spark.sparkContext.setLogLevel("OFF")
    register(spark)
    print(UP, flush=True)
    queries = {case: start(job, spark, case) for case in job.cases}
    begun: set[str] = set()
    while any(count_rows(job, case) < job.expected for case in job.cases):
        for case, query in queries.items():
            error = query.exception()
            if error is not None:
                if SLOW_MACHINE not in str(error):
                    raise error
                queries[case] = start(job, spark, case)
            elif query.lastProgress is not None and query.lastProgress.numInputRows > 0:
                begun.add(case)
                if stats(query).join.rows_waiting:
                    job.waited.touch()
        if len(begun) == len(job.cases):
            print(MOVING, flush=True)
            begun.clear()
        time.sleep(0.1)
    print(DONE, flush=True)
    for query in queries.values():
        query.stop()
    spark.stop()


def start(job: Job, spark: Any, case: str) -> Any:
    sink, mode = case.split("-")
    if job.source == "workload":
        reader = spark.readStream.format("semistream-workload").options(
            products=PRODUCTS, seed=SEED, missing=MISSING, rows=job.rows, batch_rows=BATCH_ROWS
        )
        stream = reader.load()
    else:
        reader = spark.readStream.schema(SALE_TYPES).option("maxFilesPerTrigger", 1)
        stream = reader.parquet(str(job.sent))
    enriched = enrich(
        stream,
        job.master,
        on="product_id",
        how="left",
        memory="16MB",
        max_wait=MAX_WAIT if mode == "waiting" else None,
    )
    writer = enriched.writeStream.option("checkpointLocation", str(job.checkpoint(case)))
    if sink == "files":
        return writer.format("parquet").start(str(job.sink(case)))
    return writer.foreachBatch(postgres_sink(job.postgres, table_of(case))).start()


def count_rows(job: Job, case: str) -> int:
    if case.startswith("files"):
        try:
            return int(read_sink(job.sink(case)).count_rows())
        except SourceError:
            return 0
    found = fetch(job, f"SELECT to_regclass('{table_of(case)}') IS NOT NULL AS there")
    if not found["there"][0].as_py():
        return 0
    return int(fetch(job, f"SELECT count(*) AS n FROM {table_of(case)}")["n"][0].as_py())


def fetch(job: Job, sql: str) -> pa.Table:
    with closing(connect(job.postgres)) as connection, connection.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetch_arrow_table()


# ------------------------------------------------------------------------------------- the parent


@dataclass
class Report:
    """How it went."""

    kills: int
    rows: int
    seconds: float
    lives_s: list[float]
    waited: bool
    differences: dict[str, int]

    @property
    def exact(self) -> bool:
        """Whether every sink holds exactly the join."""
        return not any(self.differences.values())


def crash_test(
    folder: Path, *, kills: int, seed: int, cases: Sequence[str], source: str, cores: int
) -> Report:
    """Let the queries live through that many kills, then to the end, and compare."""
    began = time.monotonic()
    chance = random.Random(seed)
    rows = BATCH_ROWS * BATCHES_PER_LIFE * (kills + 1)
    with PostgresServer() as server:
        job = Job(str(folder), server.uri, tuple(cases), source, cores, rows)
        master = pa.concat_tables(
            [products(PRODUCTS, seed=1).read_all(), products(REPEATED, seed=2).read_all()]
        )
        ss.build_master(job.master, master, "product_id", page_size=4096)
        stream = sales(rows, products=PRODUCTS, seed=SEED, missing=MISSING).read_all()
        job.sent.mkdir()
        for start in range(0, rows, BATCH_ROWS):
            part = stream.slice(start, BATCH_ROWS)
            pq.write_table(part, job.sent / f"{start:09d}.parquet")
        with oracle(stream, master) as database:
            expected = number(database, "SELECT count(*) FROM expected")
            job = Job(**{**asdict(job), "expected": expected})
            lives = []
            for life in range(kills + 1):
                after = Moment.drawn(chance) if life < kills else None
                longest = LONGEST_LIFE_S + (0 if after else kills * LONGER_PER_KILL_S)
                lives.append(live(job, after, longest))
            return Report(
                kills=kills,
                rows=rows,
                seconds=round(time.monotonic() - began, 1),
                lives_s=lives,
                waited=job.waited.exists(),
                differences={case: differences(job, database, case) for case in cases},
            )


@dataclass(frozen=True)
class Moment:
    """When a life ends: so many seconds after the child has said this."""

    word: str
    seconds: float

    @classmethod
    def drawn(cls, chance: random.Random) -> Moment:
        early = chance.random() < 0.25
        return cls(UP, chance.uniform(0, 4)) if early else cls(MOVING, chance.uniform(0, 1.5))


def live(job: Job, end: Moment | None, longest_s: float) -> float:
    """One life of the child, to the moment given or to its end; its seconds."""
    began = time.monotonic()
    log = Path(job.folder) / "child.log"
    with log.open("a") as errors:
        child = subprocess.Popen(
            [sys.executable, __file__, "--child", json.dumps(asdict(job))],
            stdout=subprocess.PIPE,
            stderr=errors,
            bufsize=0,  # so that what select sees is all there is
            start_new_session=True,  # a process group that can be killed with Java in it
        )
    assert child.stdout is not None
    try:
        word = DONE if end is None else end.word
        found = wait_for(child.stdout, word, longest_s)
        if found != word:
            raise AssertionError(
                f"the child said {found!r} where {word!r} was due within {longest_s} s:\n"
                f"{log.read_text()[-6000:]}"
            )
        if end is None:
            assert child.wait(LONGEST_LIFE_S) == 0, log.read_text()[-6000:]
        else:
            time.sleep(end.seconds)
    finally:
        kill_group(child.pid)
        child.wait()
        child.stdout.close()
    return round(time.monotonic() - began, 1)


def wait_for(output: IO[bytes], word: str, seconds: float) -> str | None:
    """The word, or the last one said before the output ended or time was up."""
    deadline = time.monotonic() + seconds
    said: str | None = None
    with selectors.DefaultSelector() as selector:
        selector.register(output, selectors.EVENT_READ)
        while said != word and selector.select(max(deadline - time.monotonic(), 0)):
            line = output.readline()
            if not line:
                break
            said = line.decode().strip()
    return said


def kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return  # it ended by itself, with all its processes


@contextmanager
def oracle(stream: pa.Table, master: pa.Table) -> Iterator[duckdb.DuckDBPyConnection]:
    """DuckDB with the join of everything that is sent, in the table `expected`."""
    with duckdb.connect() as database:
        database.register("sales", stream)
        database.register("master", master)
        database.execute(
            "CREATE TABLE expected AS SELECT product_id, quantity, sale_id, price, stock, "
            "supplier_id, info FROM sales LEFT JOIN master USING (product_id)"
        )
        yield database


def differences(job: Job, database: duckdb.DuckDBPyConnection, case: str) -> int:
    """Rows that are too many or too few at a sink."""
    if case.startswith("files"):
        found = read_sink(job.sink(case)).to_table()
    else:
        found = fetch(job, f"SELECT * FROM {table_of(case)}")
    database.register("found", found.select(database.table("expected").columns))
    return number(
        database,
        "SELECT (SELECT count(*) FROM (FROM found EXCEPT ALL FROM expected)) + "
        "(SELECT count(*) FROM (FROM expected EXCEPT ALL FROM found))",
    )


def number(database: duckdb.DuckDBPyConnection, sql: str) -> int:
    ((found,),) = database.execute(sql).fetchall()
    return int(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--source", choices=("workload", "files"), default="workload")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        plain = json.loads(options.child)
        run_child(Job(**{**plain, "cases": tuple(plain["cases"])}))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        report = crash_test(
            Path(folder),
            kills=options.kills,
            seed=options.seed,
            cases=options.cases.split(","),
            source=options.source,
            cores=options.cores,
        )
    print(json.dumps({**asdict(report), "exact": report.exact}))
    return 0 if report.exact else 1


if __name__ == "__main__":
    sys.exit(main())
