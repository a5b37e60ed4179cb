"""The driver of the cluster test, a process of its own: `cluster_driver.py URL FOLDER`.

Builds a master of two shards on the cluster, ships the package, enriches a stream by shard into
Parquet files, and says in a line of JSON what happened in each micro-batch, until all rows came.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from semistream.spark import build_master, enrich, local_session, package, register, shipped, stats
from semistream.workloads import products

PRODUCTS = 20_000
ROWS = 60_000
BATCH_ROWS = 3_000


def where(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import semistream

    for _ in batches:
        pass
    yield pa.RecordBatch.from_pydict({"file": [f"{Path.cwd()} {semistream.__file__}"]})


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


def main(url: str, folder: Path) -> None:
    archive = package(folder / "semistream.tar.gz")
    settings: dict[str, Any] = {**shipped(archive), "spark.executor.memory": "512m"}
    settings["spark.sql.shuffle.partitions"] = "2"
    # Fails at once, not after minutes, where the cluster has no room.
    settings["spark.scheduler.minRegisteredResourcesRatio"] = "1.0"
    session = local_session("semistream-cluster-test", master=url, **settings)
    session.sparkContext.setLogLevel("ERROR")
    register(session)
    found = session.range(2).repartition(2).mapInArrow(where, "file string").collect()
    say(imported=sorted({row.file for row in found}))
    table = session.createDataFrame(products(PRODUCTS).read_all())
    master = folder / "products.master"
    build_master(master, table, "product_id", shards=2)
    stream = (
        session.readStream.format("semistream-workload")
        .options(products=PRODUCTS, rows=ROWS, batch_rows=BATCH_ROWS, seed=3, partitions=2)
        .load()
    )
    enriched = enrich(stream, master, "product_id", memory="4MB", by_shard=True)
    query = (
        enriched.writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start(str(folder / "enriched"))
    )
    told, rows = -1, 0
    while rows < ROWS:
        error = query.exception()
        if error is not None:
            raise error
        for progress in query.recentProgress:
            if progress.batchId > told and progress.numInputRows:
                told, rows = progress.batchId, rows + progress.numInputRows
                executors = session.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
                say(batch=told, rows=rows, executors=executors, tasks=stats(query).tasks)
        time.sleep(0.05)
    query.stop()
    say(done=rows)
    session.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
