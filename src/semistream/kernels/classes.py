"""Kernels that make a static function from key64 to a class of frequency, without the keys.

Each key has three cells in a table of about 1.23 cells a key, and its class is the exclusive or of
the three. Such a table is found by peeling: a cell that only one key uses can take whatever that
key needs, so the key is set aside and its other cells may become such cells in turn. Keys are split
into parts of some thousand, each with a table and a seed of its own, so that memory stays small and
a part that cannot be peeled is simply tried with another seed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from semistream.kernels.jit import kernel
from semistream.kernels.pages import CLASS_BITS, bucket_of, cell_of

_I64 = npt.NDArray[np.int64]
_I32 = npt.NDArray[np.int32]


@kernel
def parts_of(keys: _I64, parts: int, out: _I32) -> None:
    """The part of every key."""
    for i in range(keys.size):
        out[i] = np.int32(bucket_of(keys[i], parts))


@kernel
def solve_part(
    keys: _I64, classes: _I64, seed: int, values: _I64, users: _I64, order: _I64
) -> bool:
    """Find cells with which every key gives its class; False if this seed does not allow it.

    `values` has the part's cells and is the result. `users` and `order` are scratch of two words a
    cell. Keys must differ.
    """
    cells = values.size
    users[:] = 0
    values[:] = 0
    for i in range(keys.size):
        for third in range(3):
            place = cell_of(keys[i], seed, third, cells)
            users[2 * place] += 1
            users[2 * place + 1] ^= i
    # `order` lists cells as they come to have one user; then the key that each was set aside for.
    listed, done, peeled = 0, 0, 0
    for place in range(cells):
        if users[2 * place] == 1:
            order[2 * listed] = place
            listed += 1
    while done < listed:
        own = order[2 * done]
        order[2 * done + 1] = -1
        if users[2 * own] == 1:
            i = users[2 * own + 1]
            order[2 * done + 1] = i
            peeled += 1
            for third in range(3):
                place = cell_of(keys[i], seed, third, cells)
                users[2 * place] -= 1
                users[2 * place + 1] ^= i
                if users[2 * place] == 1:
                    order[2 * listed] = place
                    listed += 1
        done += 1
    if peeled < keys.size:
        return False
    for n in range(done - 1, -1, -1):
        own, i = order[2 * n], order[2 * n + 1]
        if i >= 0:
            value = classes[i]
            for third in range(3):
                value ^= values[cell_of(keys[i], seed, third, cells)]
            values[own] = value
    return True


@kernel
def pack_cells(values: _I64, first: int, table: npt.NDArray[np.uint8]) -> None:
    """Write cells from number `first` on, two to a byte; the table has zeros there."""
    for i in range(values.size):
        place = first + i
        table[place >> 1] |= np.uint8(values[i] << (CLASS_BITS * (place & 1)))
