"""semistream: join a fast stream with a master table that is too big for memory."""

from semistream.core.budget import MemoryBudget, MemoryPlan
from semistream.core.clock import Clock, SystemClock
from semistream.core.conditions import Condition, band, between, compare, predicate
from semistream.core.errors import SemiStreamError
from semistream.core.join import SemiStreamJoin, Snapshot
from semistream.core.stats import JoinStats
from semistream.cost import auto as _auto  # noqa: F401 - lets "auto" choose by the cost models
from semistream.joins.api import JoinedStream, join
from semistream.joins.registry import list_joins, make_join
from semistream.store.apply import Applied, apply_changes, compact_master
from semistream.store.build import build_master
from semistream.store.file import FileMaster, open_master
from semistream.store.sql import Table, open_table, read_table

__version__ = "0.1.0"

__all__ = [
    "Applied",
    "Clock",
    "Condition",
    "FileMaster",
    "JoinStats",
    "JoinedStream",
    "MemoryBudget",
    "MemoryPlan",
    "SemiStreamError",
    "SemiStreamJoin",
    "Snapshot",
    "SystemClock",
    "Table",
    "__version__",
    "apply_changes",
    "band",
    "between",
    "build_master",
    "compact_master",
    "compare",
    "join",
    "list_joins",
    "make_join",
    "open_master",
    "open_table",
    "predicate",
    "read_table",
]
