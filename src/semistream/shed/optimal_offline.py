"""The offline optimum: what shedding loses at least, when all of the stream is known beforehand.

A benchmark for the policies that decide while rows arrive, after OPTOFFLINESHED (MESHJOIN paper,
§4). The model: one stream row arrives per unit of time. The join asks for w rows, works on them for
`c_loop` units, and asks again; it gets its rows when there are w of them, and stalls until then.
Rows that were kept are never replaced. The loss is the number of results of all rows that were not
kept.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from semistream.core.errors import OptionError
from semistream.kernels.jit import kernel

_Counts = npt.NDArray[np.int64]


def optimal_loss(results: npt.ArrayLike, w: int, c_loop: int) -> int:
    """The least number of results lost, given the number of results of every row, in order.

    The printed programme (Fig. 9) drops the loss of rows that find the buffer full, stops one row
    early and reads beyond its table. Here the time of the next request is relative to the row, so
    that the time is |S|·c_loop·w and the memory c_loop·w.
    """
    counts = _checked(results, w, c_loop)
    if w == 0:
        return int(counts.sum())
    after = np.zeros((c_loop + 1, w + 1), np.int64)
    now = np.zeros_like(after)
    _least_loss(counts, after, now)
    return int(after[0, 0])


def topw_loss(results: npt.ArrayLike, w: int, c_loop: int) -> int:
    """The results that TOPW loses in the same model: of each `c_loop` rows it keeps the w best."""
    counts = _checked(results, w, c_loop)
    padded = np.zeros(-(-len(counts) // c_loop) * c_loop, np.int64)
    padded[: len(counts)] = counts
    intervals = np.sort(padded.reshape(-1, c_loop), axis=1)
    return int(intervals[:, : max(c_loop - w, 0)].sum())


def _checked(results: npt.ArrayLike, w: int, c_loop: int) -> _Counts:
    if w < 0 or c_loop < 1:
        raise OptionError(
            f"w={w}, c_loop={c_loop}: the join takes w >= 0 rows every c_loop >= 1 units of time"
        )
    counts = np.asarray(results, np.int64)
    if counts.ndim != 1 or (len(counts) and counts.min() < 0):
        raise OptionError("results must be one number >= 0 per stream row")
    return counts


@kernel
def _least_loss(results: _Counts, after: _Counts, now: _Counts) -> None:
    """Fill `after` with optloss(0, left, buffered), both tables of c_loop + 1 by w + 1.

    optloss(i, left, buffered) is the least loss from row i on, with `left` units until the join
    asks again and so many rows kept for it. Behind the last row nothing is lost any more.
    """
    c_loop, w = after.shape[0] - 1, after.shape[1] - 1
    for i in range(len(results) - 1, -1, -1):
        lost = results[i]
        for left in range(c_loop, -1, -1):
            then = max(left - 1, 0)
            for buffered in range(w):
                kept = after[then, buffered + 1]
                shed = after[then, buffered] + lost
                now[left, buffered] = min(kept, shed)
            # A full buffer: the row is lost, or the join has asked and takes the rows first.
            # (c_loop, 0) of this row is computed already: the loop runs down from there.
            now[left, w] = after[then, w] + lost if left > 0 else now[c_loop, 0]
        after[:] = now
