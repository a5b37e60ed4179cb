"""How many results shedding leaves: TOPW beside the offline optimum (MESHJOIN paper, Fig. 11).

A stream of rho·20,000 rows with Zipf-distributed keys (z_S = 0.5) comes rho times as fast as it can
be joined; R has as many rows as its keys have values, with exponent z_R. The paper says neither how
large w is, nor how R's keys are drawn, nor whether R's hot keys are the stream's. How they are
drawn decides most, so that both ways are run: *random* draws every row's key, so that counts vary
even at z_R = 0; *fixed* gives each key its expected count. Hot keys of both sides are the same
(*same*) or chosen independently (*other*).

Verified: the optimum loses no more than TOPW does, and both lose no more than all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from semistream.core.errors import OptionError, unknown_name
from semistream.shed.optimal_offline import optimal_loss, topw_loss
from semistream.workloads.zipf import zipf_ranks

ROWS_AT_RATE_ONE = 20_000
DRAWS = ("random", "fixed")
HOT = ("same", "other")

_I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class SheddingOptions:
    """The grid; `loads` are rho, the rate of the stream over that of the join."""

    loads: tuple[float, ...] = (1.1, 1.5, 2.0)
    skews: tuple[float, ...] = (0.1, 0.5, 1.0)
    draws: tuple[str, ...] = DRAWS
    hot: tuple[str, ...] = HOT
    rows: int = 3_500_000
    stream_skew: float = 0.5
    streams: int = 10
    w: int = 50
    seed: int = 1

    def __post_init__(self) -> None:
        for name, known in (("draws", DRAWS), ("hot", HOT)):
            for value in getattr(self, name):
                if value not in known:
                    raise unknown_name(f"value of {name}", value, known)
        if any(not 1 <= load < 100 for load in self.loads):
            raise OptionError(f"loads {self.loads} are not all from 1 to 100", hint="try 1.1,2")
        if min(self.rows, self.streams, self.w) < 1:
            raise OptionError("rows, streams and w must be above zero")


@dataclass(frozen=True)
class SheddingResult:
    """One cell: shares of the results that are left, means over all streams, and the least."""

    load: float
    skew: float
    draw: str
    hot: str
    w: int
    c_loop: int
    streams: int
    topw_share: float
    topw_least_share: float
    optimum_share: float
    behind_optimum: float
    """The largest part of the optimum's results that TOPW lost, over all streams."""

    verified: bool

    def to_dict(self) -> dict[str, object]:
        """A plain record for JSON."""
        return asdict(self)


def run_shedding(
    options: SheddingOptions, tell: Callable[[str], None] = lambda line: None
) -> Iterator[SheddingResult]:
    """Run the grid, cell by cell."""
    order = np.random.default_rng(options.seed).permutation(options.rows)
    for skew in options.skews:
        for draw in options.draws:
            tell(f"R of {options.rows:,} rows, z_R = {skew:g}, {draw} counts")
            counts = master_counts(options.rows, skew, draw, options.seed)
            for hot in options.hot:
                by_rank = counts if hot == "same" else counts[order]
                for load in options.loads:
                    yield _cell(options, load, skew, draw, hot, by_rank)


def master_counts(rows: int, skew: float, draw: str, seed: int) -> _I64:
    """How many rows of R have each key, hottest key first."""
    if draw == "random":
        return np.bincount(zipf_ranks(rows, skew, rows, seed) - 1, minlength=rows)
    share = np.arange(1, rows + 1) ** -float(skew)
    upto = np.round(np.cumsum(share) * (rows / share.sum())).astype(np.int64)
    counts: _I64 = np.diff(upto, prepend=0)
    return counts


def _cell(
    options: SheddingOptions, load: float, skew: float, draw: str, hot: str, counts: _I64
) -> SheddingResult:
    w, c_loop = options.w, max(round(load * options.w), 1)
    length = round(load * ROWS_AT_RATE_ONE)
    shares = np.empty((options.streams, 2))
    verified = True
    for stream in range(options.streams):
        start = stream * length
        ranks = zipf_ranks(options.rows, options.stream_skew, length, options.seed + 1, start)
        results = counts[ranks - 1]
        total = int(results.sum())
        topw, optimum = topw_loss(results, w, c_loop), optimal_loss(results, w, c_loop)
        verified = verified and 0 <= optimum <= topw <= total
        shares[stream] = 1 - np.array([topw, optimum]) / max(total, 1)
    return SheddingResult(
        load=load,
        skew=skew,
        draw=draw,
        hot=hot,
        w=w,
        c_loop=c_loop,
        streams=options.streams,
        topw_share=float(shares[:, 0].mean()),
        topw_least_share=float(shares[:, 0].min()),
        optimum_share=float(shares[:, 1].mean()),
        behind_optimum=float((1 - shares[:, 0] / shares[:, 1]).max()),
        verified=verified,
    )
