"""The buffer pool: a page that is found is that page, and used ones stay longer."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from semistream.kernels.frames import FRAMES, add_page, drop_page, frame_address, keep_page
from semistream.kernels.struct import Struct
from tests.examples import examples

PAGES, PAGE_BYTES = 12, 16


def pool(count: int) -> tuple[Struct, np.ndarray]:
    data = np.zeros(max(count, 1) * PAGE_BYTES, np.uint8)
    frames = Struct(
        FRAMES,
        data=data,
        page_bytes=PAGE_BYTES,
        count=count,
        frame_of=np.full(PAGES, -1, np.int32),
        page_in=np.full(max(count, 1), -1, np.int64),
        touched=np.zeros(max(count, 1), np.uint8),
        uses=np.zeros(max(count, 1), np.int64),
    )
    return frames, data


def look(frames: Struct, data: np.ndarray, page: int) -> bytes | None:
    address = int(frame_address(frames.kernel, page))
    if address == 0:
        return None
    at = address - data.ctypes.data
    return data[at : at + PAGE_BYTES].tobytes()


calls = st.lists(st.tuples(st.booleans(), st.integers(0, PAGES - 1)), max_size=80)


@given(count=st.integers(0, 6), calls=calls)
@settings(deadline=None, max_examples=examples(200))
def test_pages_are_found_whole_or_not_at_all(count: int, calls: list[tuple[bool, int]]) -> None:
    frames, data = pool(count)
    kept: set[int] = set()
    for keeps, page in calls:
        if keeps:
            origin = np.full(PAGE_BYTES, page + 1, np.uint8)
            keep_page(frames.kernel, page, origin.ctypes.data)
            kept.add(page)
            assert count == 0 or look(frames, data, page) == bytes([page + 1]) * PAGE_BYTES
        else:
            found = look(frames, data, page)
            assert found is None or found == bytes([page + 1]) * PAGE_BYTES
        held = [p for p in range(PAGES) if frames.array("frame_of")[p] >= 0]
        assert set(held) <= kept
        assert len(held) == min(count, len(kept)) == frames.used


def test_a_page_that_is_used_stays_while_others_go() -> None:
    frames, data = pool(3)
    for page in range(3):
        keep_page(frames.kernel, page, np.full(PAGE_BYTES, page + 1, np.uint8).ctypes.data)
    for page in range(3, PAGES):
        assert look(frames, data, 0) is not None
        keep_page(frames.kernel, page, np.full(PAGE_BYTES, page + 1, np.uint8).ctypes.data)
    assert look(frames, data, 0) is not None
    assert look(frames, data, 1) is None


@given(calls=st.lists(st.tuples(st.booleans(), st.integers(0, PAGES - 1)), max_size=60))
@settings(deadline=None, max_examples=examples(100))
def test_frames_stay_dense_when_the_join_decides(calls: list[tuple[bool, int]]) -> None:
    frames, data = pool(5)
    held: dict[int, int] = {}
    for number, (adds, page) in enumerate(calls):
        if adds and page not in held and len(held) < 5:
            origin = np.full(PAGE_BYTES, page + 1, np.uint8)
            add_page(frames.kernel, page, origin.ctypes.data, number)
            held[page] = number
        elif not adds and page in held:
            drop_page(frames.kernel, frames.array("frame_of")[page])
            del held[page]
        assert frames.used == len(held)
        assert sorted(frames.array("page_in")[: frames.used].tolist()) == sorted(held)
        for other in range(PAGES):
            whole = bytes([other + 1]) * PAGE_BYTES if other in held else None
            assert look(frames, data, other) == whole
        for frame in range(frames.used):
            assert frames.array("uses")[frame] == held[int(frames.array("page_in")[frame])]
