"""Resident memory of this process, watched from a thread."""

from __future__ import annotations

import ctypes
import gc
import threading
from types import TracebackType

import psutil
import pyarrow as pa

INTERVAL_S = 0.005


class ResidentGrowth:
    """The highest resident memory over the level at the start, in bytes.

    It looks every few milliseconds, but not while it is paused: results that a measurement holds
    on to are not the join's memory.
    """

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._stop = threading.Event()
        self._watching = threading.Event()
        self._watching.set()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        give_back_memory()
        self._before = self._resident()
        self._peak = self._before

    @property
    def peak_bytes(self) -> int:
        """Bytes by which the process grew at most."""
        return max(self._peak - self._before, 0)

    def pause(self) -> None:
        """Do not look until `resume`."""
        self._look()
        self._watching.clear()

    def resume(self) -> None:
        """Look again, after what was freed meanwhile is given back."""
        give_back_memory()
        self._watching.set()

    def _resident(self) -> int:
        return int(self._process.memory_info().rss)

    def _look(self) -> None:
        self._peak = max(self._peak, self._resident())

    def _watch(self) -> None:
        while not self._stop.wait(INTERVAL_S):
            if self._watching.is_set():
                self._look()

    def __enter__(self) -> ResidentGrowth:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()


def give_back_memory() -> None:
    """Return what is freed to the system, so that it is not mistaken for memory in use."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
