"""Growth of resident memory is seen while it is watched."""

from __future__ import annotations

import mmap

from semistream.bench.memory import ResidentGrowth

SIZE = 50_000_000


def touch() -> mmap.mmap:
    memory = mmap.mmap(-1, SIZE)
    for at in range(0, SIZE, mmap.PAGESIZE):
        memory[at] = 1
    return memory


def test_growth_is_seen() -> None:
    with ResidentGrowth() as growth:
        memory = touch()
        growth.pause()
        memory.close()
    assert 0.9 * SIZE < growth.peak_bytes < 1.5 * SIZE


def test_what_happens_in_a_pause_is_not() -> None:
    with ResidentGrowth() as growth:
        growth.pause()
        memory = touch()
        memory.close()
        growth.resume()
    assert growth.peak_bytes < 0.5 * SIZE
