"""Kernels for a buffer pool: pages of the master in memory.

Either the clock algorithm decides what is replaced (`keep_page`), or the join does: then frames
are dense, a page is added behind the last one (`add_page`), and the last one fills the hole that a
dropped page leaves (`drop_page`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from semistream.kernels.jit import inlined
from semistream.kernels.memory import (
    at,
    copy_bytes,
    load_i32,
    load_u8,
    store_i32,
    store_i64,
    store_u8,
)
from semistream.kernels.struct import struct_type

FRAMES = struct_type("data page_bytes count frame_of page_in touched hand used chosen uses")
"""The pool: `frame_of` gives the frame of every page (32-bit, negative if it has none), `page_in`
the page of every frame or -1 (64-bit), `touched` has a byte per frame, `hand` is the clock's. If
`chosen`, only pages are kept for which a frame f was set aside: their `frame_of` is -2 - f. `uses`
is a 64-bit counter per frame for joins that rank their pages themselves."""


@inlined
def frame_address(frames: Any, page: int) -> int:
    """Where a page lies in the pool, or 0; finding it counts as a use."""
    if frames.count == 0:
        return 0
    frame = np.int64(load_i32(frames.frame_of + 4 * page))
    if frame < 0:
        return 0
    store_u8(frames.touched + frame, np.uint8(1))
    return frames.data + frame * frames.page_bytes


@inlined
def keep_page(frames: Any, page: int, origin: int) -> None:
    """Copy a page into the pool; the first one not used since the hand last passed gives way."""
    aside = np.int64(load_i32(frames.frame_of + 4 * page)) if frames.count > 0 else np.int64(0)
    if aside >= 0 or (frames.chosen != 0 and aside == -1):
        return
    if frames.chosen != 0:
        _put(frames, page, -2 - aside, origin)
        return
    while load_u8(frames.touched + frames.hand) != 0:
        store_u8(frames.touched + frames.hand, np.uint8(0))
        frames.hand = (frames.hand + 1) % frames.count
    frame = frames.hand
    frames.hand = (frames.hand + 1) % frames.count
    _put(frames, page, frame, origin)


@inlined
def _put(frames: Any, page: int, frame: int, origin: int) -> None:
    """Copy a page into a frame; the page in it goes."""
    old = at(frames.page_in, frame)
    if old >= 0:
        store_i32(frames.frame_of + 4 * old, np.int32(-1))
    else:
        frames.used += 1
    copy_bytes(frames.data + frame * frames.page_bytes, origin, frames.page_bytes)
    store_i64(frames.page_in + 8 * frame, page)
    store_i32(frames.frame_of + 4 * page, np.int32(frame))


@inlined
def add_page(frames: Any, page: int, origin: int, uses: int) -> None:
    """Copy a page that has no frame behind the last one; the caller knows that there is room."""
    frame = frames.used
    copy_bytes(frames.data + frame * frames.page_bytes, origin, frames.page_bytes)
    store_i64(frames.page_in + 8 * frame, page)
    store_i64(frames.uses + 8 * frame, uses)
    store_u8(frames.touched + frame, np.uint8(0))
    store_i32(frames.frame_of + 4 * page, np.int32(frame))
    frames.used = frame + 1


@inlined
def drop_page(frames: Any, frame: int) -> None:
    """Forget the page in a frame; the last one takes its place."""
    last = frames.used - 1
    store_i32(frames.frame_of + 4 * at(frames.page_in, frame), np.int32(-1))
    if frame != last:
        moved = at(frames.page_in, last)
        size = frames.page_bytes
        copy_bytes(frames.data + frame * size, frames.data + last * size, size)
        store_i64(frames.page_in + 8 * frame, moved)
        store_i64(frames.uses + 8 * frame, at(frames.uses, last))
        store_u8(frames.touched + frame, load_u8(frames.touched + last))
        store_i32(frames.frame_of + 4 * moved, np.int32(frame))
    frames.used = last
