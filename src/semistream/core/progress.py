"""Progress of long work: shown on a terminal after two seconds, silent in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from semistream.core.clock import Clock, SystemClock

Report = Callable[[str, int, int | None], None]
"""Called with the name of the phase, what is done and the total, if it is known."""

PATIENCE_NS = 2_000_000_000


class TerminalProgress:
    """A progress bar on standard error; use it as a context and call it as a `Report`."""

    def __init__(self, *, enabled: bool | None = None, clock: Clock | None = None) -> None:
        self._enabled = sys.stderr.isatty() if enabled is None else enabled
        self._clock = clock or SystemClock()
        self._start_ns = self._clock.now_ns()
        self._tasks: dict[str, TaskID] = {}
        self._bar: Progress | None = None

    def __call__(self, phase: str, done: int, total: int | None) -> None:
        if not self._enabled or self._clock.now_ns() - self._start_ns < PATIENCE_NS:
            return
        if self._bar is None:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                console=Console(stderr=True),
            )
            self._bar.start()
        if phase not in self._tasks:
            self._tasks[phase] = self._bar.add_task(phase, total=total)
        self._bar.update(self._tasks[phase], completed=done, total=total)

    def __enter__(self) -> TerminalProgress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
