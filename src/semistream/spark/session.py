"""A local Spark session with settings that suit small, frequent micro-batches."""

from __future__ import annotations

import os
import sys
from typing import Any

from pyspark.sql import SparkSession

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # A worker that is reused keeps its operator, with the cache in it.
    "spark.python.worker.reuse": "true",
    # Arrow batches of Spark's usual 10,000 rows cost a round of Python each. A bound in bytes too
    # would have Spark add up the sizes of all columns after every row.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "16384",
    "spark.sql.execution.arrow.maxBytesPerBatch": "2147483647",
    # transformWithState, which `max_wait` needs, keeps its state in RocksDB.
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    # A checkpoint on a local disk is written three times a micro-batch. Spark's usual way forks
    # programs for links and permissions each time, which takes longer than the writing.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing."
        "FileSystemBasedCheckpointFileManager"
    ),
    # A commit writes what changed, and not files of the whole database.
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # Rows go to Python workers and come back, several times as wide: for less than through TCP.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


def local_session(
    name: str = "semistream",
    *,
    cores: int | None = None,
    master: str | None = None,
    **settings: Any,
) -> SparkSession:
    """A Spark session on this machine, on `cores` of its cores or all.

    `master` sends its work to a cluster instead, for example `"spark://host:7077"`.
    `settings` are Spark's own, with underscores for dots: `spark_driver_memory="2g"`. They win over
    `SETTINGS`, which any other session may take over too.
    """
    # Spark would otherwise start whatever python3 the path finds.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(master or f"local[{cores or '*'}]").appName(name)
    own = {key.replace("_", "."): value for key, value in settings.items()}
    cores_used = {"spark.sql.shuffle.partitions": str(cores)} if cores else {}
    for key, value in {**SETTINGS, **cores_used, **own}.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    _write_plainly(session)
    return session


def _write_plainly(session: SparkSession) -> None:
    """Have files on local disks written without a second one for checksums beside each.

    Spark's usual way of checkpoints does without them too; and for every file Hadoop forks a
    program that sets its permissions, six times a micro-batch.
    """
    jvm: Any = session.sparkContext._jvm
    settings = session.sparkContext._jsc.hadoopConfiguration()
    jvm.org.apache.hadoop.fs.FileSystem.getLocal(settings).setWriteChecksum(False)
