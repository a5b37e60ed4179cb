"""The papers' machines, as far as the papers tell: a disk and what steps of a join take.

A join of ours runs on the machine at hand; what it reads and does is counted. Counts times the unit
costs of a paper's machine are the seconds that machine would have taken, by the papers' own
equations: reads and steps follow each other. So the result does not depend on the machine at hand,
nor on what else it does.
"""

from __future__ import annotations

from dataclasses import dataclass

from semistream.core.stats import JoinStats
from semistream.cost.units import ModelledDisk

PAGE_BYTES = 8192


@dataclass(frozen=True)
class Machine:
    """A disk, and seconds per step: `read` a stream row (c_S), `append` (c_A) and `expire` (c_E)
    one that waits, `probe` a hash table (c_H), build a `result` (c_O)."""

    disk: ModelledDisk
    read: float = 0.0
    append: float = 0.0
    expire: float = 0.0
    probe: float = 0.0
    result: float = 0.0

    @property
    def row(self) -> float:
        """Seconds of a stream row that waits, without its result: c_S + c_A + c_E."""
        return self.read + self.append + self.expire

    def seconds(self, did: JoinStats, probes: float) -> float:
        """Seconds for what a join did.

        `probes` are look-ups of master rows among waiting ones, which our joins by index do without
        and the papers' do not.
        """
        return self.io_s(did) + self.cpu_s(did, probes)

    def io_s(self, did: JoinStats) -> float:
        """Seconds of the disk."""
        return did.modelled_disk_s(self.disk.seek_s, self.disk.page_s)

    def cpu_s(self, did: JoinStats, probes: float) -> float:
        """Seconds of the processor."""
        answered = did.rows_matched + did.rows_unmatched
        waited, looked_up = answered, 0
        if did.algorithm in CACHED:
            waited, looked_up = answered - did.hits, answered
        elif did.algorithm == "inlj":
            waited, looked_up, probes = 0, answered, 0.0
        return (
            answered * self.read
            + waited * (self.append + self.expire)
            + (probes + looked_up) * self.probe
            + did.rows_out * self.result
        )


CACHED = ("optimisedxhybridjoin", "cachejoin", "cachejoin2", "sscj", "cmeshjoin", "ssbj")
"""Joins that look every stream row up in a cache of rows before it waits."""

PLAIN = Machine(ModelledDisk(8e-3, 1e-4))
"""A disk of those years, 8 ms and 80 MB/s, and a processor that costs nothing: for papers that
give no costs."""

MESHJOIN = Machine(
    ModelledDisk(3.8e-3, 1e-4), read=1e-6, append=11.5e-6, expire=11.5e-6, probe=1e-7, result=1e-6
)
"""The machine of the MESHJOIN paper, which gives no costs. They follow from three of its numbers:
274 rows/s of INL and 3,500 of MESHJOIN at M = 0.5 %, 26,000 of MESHJOIN at M = 10 %; how the 25 µs
of a stream row are divided is a guess."""

RANDOM_PARTITION_S = 9_939_229e-9
PARTITION_BYTES = 60 * 1024
SEQUENTIAL_FACTOR = 2
_PARTITION_PAGES = PARTITION_BYTES / PAGE_BYTES
_W = 109

THESIS = Machine(
    ModelledDisk(
        RANDOM_PARTITION_S * (1 - 1 / SEQUENTIAL_FACTOR),
        RANDOM_PARTITION_S / SEQUENTIAL_FACTOR / _PARTITION_PAGES,
    ),
    read=408_641e-9 / _W,
    append=391_092e-9 / _W,
    expire=572_032e-9 / _W,
    probe=1_308_500e-9 / (PARTITION_BYTES / 120),
    result=218_000e-9 / _W,
)
"""The machine of thesis ch. 5 to 8, by its Table 5.2: 9.94 ms to read 60 KB somewhere, and costs of
an iteration with w = 109 rows. Theorem 1 says that reading on costs more than half of that: half
is taken for the seek, half for the transfer."""

_SCAN_COSTS = {"read": 5.03e-6 / 125, "append": 54.476e-6 / 125, "expire": 53.917e-6 / 125}

TEXT_FILE = Machine(ModelledDisk(1.55e-3, 1e-4), **_SCAN_COSTS, probe=2.24e-6, result=0.02e-6)
"""The machine of thesis ch. 3, where R is a text file. Costs are those of Table 4.3; 1.55 ms for a
request follow from one number, the best buffer of 0.93 MB for 20 MB of memory."""

CACHED_FILE = Machine(ModelledDisk(35e-6, 0.03e-6), **_SCAN_COSTS, probe=2.24e-6, result=0.02e-6)
"""The machine of thesis ch. 4, by its Table 4.3: 33 to 37 µs to read 0.31 to 0.52 MB, which the
operating system had in its cache; a request hardly costs more when it is larger."""
