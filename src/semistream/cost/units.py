"""Unit costs: what each thing that a join does takes, in seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import pairwise
from typing import Any


@dataclass(frozen=True)
class Loop:
    """What happens in one iteration of an algorithm's outer loop, counted.

    `rows` are the stream rows answered in it (w): `hits` at once, by a cache of rows (w_N), `waits`
    after waiting (w_S), of which `held` by pages in memory; `found` are rows that find their key in
    a page without having waited. Of the `pages` some are `seen` where the operating system has
    them, instead of being read. The papers' equations are sums of these counts, each times a unit
    cost.
    """

    rows: float
    hits: float = 0.0
    waits: float = 0.0
    held: float = 0.0
    behind: float = 0.0
    far: float = 0.0
    found: float = 0.0
    results: float = 0.0
    looked_up: float = 0.0
    cache_looked_up: float = 0.0
    probes: float = 0.0
    offered: float = 0.0
    watched: float = 0.0
    pages: float = 0.0
    seen: float = 0.0
    requests: float = 0.0
    seeks: float = 0.0
    calls: float = 1.0

    @property
    def hit_share(self) -> float:
        """Share of the rows that needed no read: p_N."""
        return (self.hits + self.held) / self.rows if self.rows else 0.0


@dataclass(frozen=True)
class ReadCost:
    """c_IO(b): what a request costs by itself, and each of its pages."""

    request_s: float
    page_s: float

    def __call__(self, pages: float) -> float:
        """Seconds for one request of so many pages."""
        return self.request_s + pages * self.page_s


@dataclass(frozen=True)
class ModelledDisk:
    """A disk that is reckoned with instead of measured: SSIJ §IV-D, c_IO(b) = t_s + b·t_x.

    A request that begins where the one before ended costs no seek. The default is a disk of the
    papers' time.
    """

    seek_s: float = 8e-3
    page_s: float = 1e-4

    def __call__(self, pages: float) -> float:
        """Seconds for one request of so many pages, elsewhere on the disk."""
        return self.seek_s + pages * self.page_s


@dataclass(frozen=True)
class Costs:
    """Seconds per unit, at one size of memory.

    The papers' symbols: `read` a row from the stream (c_S), `append` it to the waiting rows (c_A),
    `expire` it (c_E), `probe` the waiting rows with a row of the master (c_H), build a `result`
    (c_O), `compare` a row's matches with a threshold (c_F), `watch` a row of the master for SSBJ's
    switching buffer (c_B). The implementation has terms that the papers have not: `look_up` a key
    in the index, `find` a waiting row's key in its page (what c_H is to a join by index), `cached`
    a look-up in the cache H_R and `hit` the answer from it, a row `behind` others of its key (its
    memory cannot be asked for ahead), one that is `far` (its page has left the processor's nearest
    caches when it is joined, because the read buffer is large), `page` what a page costs beside its
    read, and `call` a round of push and step.
    """

    read: float
    append: float
    expire: float
    probe: float
    result: float
    compare: float
    watch: float
    look_up: float
    find: float
    cached: float
    hit: float
    behind: float
    far: float
    page: float
    call: float


SEEN = "seen"
"""The way of reading, beside buffered and direct, in which nothing is copied."""

GROWTH, MOST_GROWTH = 1 / 3, 2.0
"""Memory beyond the largest that was measured is slower by this power of its size, up to so many
times: fewer of its places are in the processor's caches. Joins with 14, 28 and 56 MB had it so."""

COST_NAMES = tuple(one.name for one in fields(Costs))

SizedCosts = tuple[tuple[int, Costs], ...]
"""Costs at some sizes of memory, from the least on."""

PAPER_SYMBOLS = {
    "read": "c_S",
    "append": "c_A",
    "expire": "c_E",
    "probe": "c_H",
    "result": "c_O",
    "compare": "c_F",
    "watch": "c_B",
}


@dataclass(frozen=True)
class UnitCosts:
    """The unit costs of a machine: `Costs` at some sizes of memory, and c_IO by way of reading.

    Memory that does not fit the processor's caches is slower; between two sizes costs are
    interpolated, beyond them they grow slowly (with one size alone they are the same everywhere).
    `joins` has costs of single joins, where their own runs told more than those of all joins
    together.
    """

    sizes: SizedCosts
    read: Mapping[str, ReadCost]
    disk: ModelledDisk | None = None
    joins: Mapping[str, SizedCosts] = field(default_factory=dict)

    def at(self, memory_bytes: float, join: str = "") -> Costs:
        """The costs of a join with this much memory; without a name those of all."""
        sizes = self.joins.get(join, self.sizes)
        if memory_bytes <= sizes[0][0]:
            return sizes[0][1]
        for (low, below), (high, above) in pairwise(sizes):
            if memory_bytes <= high:
                share = (memory_bytes - low) / (high - low)
                return Costs(
                    *(
                        (1 - share) * getattr(below, name) + share * getattr(above, name)
                        for name in COST_NAMES
                    )
                )
        most, costs = sizes[-1]
        known = len(self.sizes) > 1
        growth = min((memory_bytes / most) ** GROWTH, MOST_GROWTH) if known else 1.0
        return Costs(*(growth * getattr(costs, name) for name in COST_NAMES))

    def with_disk(self, disk: ModelledDisk) -> UnitCosts:
        """The same processor with a modelled disk."""
        return replace(self, disk=disk)

    def io_s(self, loop: Loop, io: str) -> float:
        """Seconds for the reads of a loop."""
        if self.disk is not None:
            return loop.seeks * self.disk.seek_s + loop.pages * self.disk.page_s
        return reading_s(loop, self.read, io)

    def loop_s(
        self, loop: Loop, memory_bytes: float, io: str, *, by_index: bool, join: str = ""
    ) -> float:
        """c_loop: seconds for one iteration.

        Buffered reads are copies that the processor makes. Direct ones go on while it works, so
        that the longer of the two counts; a modelled disk works by itself as well.
        """
        busy = self.busy_s(loop, memory_bytes, by_index=by_index, join=join)
        reading = self.io_s(loop, io)
        if self.disk is not None or io == "direct":
            return max(busy, reading)
        return busy + reading

    def busy_s(self, loop: Loop, memory_bytes: float, *, by_index: bool, join: str = "") -> float:
        """Seconds of the processor without reads."""
        cost = self.at(memory_bytes, join)
        parts = counted(loop, by_index=by_index)
        return float(sum(count * getattr(cost, name) for name, count in parts.items()))

    def to_dict(self) -> dict[str, Any]:
        """A plain record for JSON."""
        return {
            "sizes": _plain(self.sizes),
            "read": {way: asdict(cost) for way, cost in self.read.items()},
            "disk": None if self.disk is None else asdict(self.disk),
            "joins": {join: _plain(sizes) for join, sizes in self.joins.items()},
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> UnitCosts:
        """What `to_dict` gave."""
        return cls(
            _sized(plain["sizes"]),
            {way: ReadCost(**cost) for way, cost in plain["read"].items()},
            None if plain.get("disk") is None else ModelledDisk(**plain["disk"]),
            {join: _sized(sizes) for join, sizes in plain.get("joins", {}).items()},
        )


def _plain(sizes: SizedCosts) -> list[dict[str, Any]]:
    return [{"memory_bytes": size, **asdict(costs)} for size, costs in sizes]


def _sized(plain: Sequence[Mapping[str, Any]]) -> SizedCosts:
    return tuple(
        (int(one["memory_bytes"]), Costs(**{name: one[name] for name in COST_NAMES}))
        for one in plain
    )


def reading_s(loop: Loop, read: Mapping[str, ReadCost], io: str) -> float:
    """Seconds for the reads of a loop: copies, and pages that are seen."""
    share = loop.seen / loop.pages if loop.pages else 0.0
    copying, looking = read[io], read.get(SEEN, read[io])
    request_s = (1 - share) * copying.request_s + share * looking.request_s
    page_s = (1 - share) * copying.page_s + share * looking.page_s
    return loop.requests * request_s + loop.pages * page_s


def counted(loop: Loop, *, by_index: bool) -> dict[str, float]:
    """How often each unit cost occurs in a loop.

    A waiting row is appended and expired in joins that scan; in those by index it is appended and
    found in its page, where it leaves at once.
    """
    return {
        "read": loop.rows,
        "append": loop.waits,
        "expire": 0.0 if by_index else loop.waits,
        "probe": loop.probes,
        "result": loop.results,
        "compare": loop.offered,
        "watch": loop.watched,
        "look_up": loop.looked_up,
        "find": loop.waits + loop.found if by_index else 0.0,
        "cached": loop.cache_looked_up,
        "hit": loop.hits,
        "behind": loop.behind,
        "far": loop.far,
        "page": loop.pages if by_index else 0.0,
        "call": loop.calls,
    }
