"""The joins inside PySpark: `enrich`, masters built by Spark, sources and sinks.

Needs PySpark 4 and Java 17, which `pip install 'semistream[spark]'` and your system bring.
"""

try:
    import pyspark as _pyspark  # noqa: F401
except ImportError as error:  # pragma: no cover
    raise ImportError(
        "semistream.spark needs PySpark. Hint: pip install 'semistream[spark]', and Java 17."
    ) from error

from semistream.spark.build import build_master
from semistream.spark.enrich import enrich
from semistream.spark.maintain import maintain
from semistream.spark.metrics import BatchStats, log_stats, stats
from semistream.spark.session import local_session
from semistream.spark.shipping import package, shipped
from semistream.spark.sinks import postgres_sink, read_sink
from semistream.spark.sources import register
from semistream.spark.transform import (
    duplicates,
    read_master,
    similar,
    snapshot_difference,
    star,
    surrogate_keys,
)

__all__ = [
    "BatchStats",
    "build_master",
    "duplicates",
    "enrich",
    "local_session",
    "log_stats",
    "maintain",
    "package",
    "postgres_sink",
    "read_master",
    "read_sink",
    "register",
    "shipped",
    "similar",
    "snapshot_difference",
    "star",
    "stats",
    "surrogate_keys",
]
