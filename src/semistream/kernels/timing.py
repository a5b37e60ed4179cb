"""Kernels that do one thing alone, for measuring what it costs."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from semistream.kernels.jit import kernel
from semistream.kernels.memory import load_i64, load_u8
from semistream.kernels.reading import (
    REQ_BUFFER,
    REQ_COUNT,
    count_seen,
    give_back,
    in_flight,
    oldest,
    submit,
)


@kernel
def read_only_runs(ring: Any, runs: npt.NDArray[np.int64]) -> bool:
    """Read runs of pages, several ahead, and do nothing with them but touch each; False if a read
    failed. (Pages of a window are cheaper to let go where nobody has touched them.)"""
    submitted, touched = 0, 0
    while True:
        while submitted < runs.shape[0] and submit(ring, runs[submitted, 0], runs[submitted, 1]):
            submitted += 1
        if in_flight(ring) == 0:
            return touched >= 0
        request = oldest(ring)
        if request == 0:
            return False
        for page in range(load_i64(request + REQ_COUNT)):
            touched += load_u8(load_i64(request + REQ_BUFFER) + page * ring.page_bytes)
        count_seen(ring, request, load_i64(request + REQ_COUNT))
        give_back(ring)
