"""Running experiments in several processes.

Experiments of one paper share what they play, so that a process runs all of a paper. Those that
measure seconds of this machine run last, while nothing else does.
"""

from __future__ import annotations

import multiprocessing
import queue
import signal
import sys
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

from semistream.bench.papers import EXPERIMENTS
from semistream.bench.papers.experiment import Experiment
from semistream.bench.papers.ground import Ground, ScaleName
from semistream.bench.papers.running import (
    CELLS,
    Failed,
    Stored,
    run_experiments,
    stored,
)
from semistream.core.errors import SemiStreamError
from semistream.core.progress import Report

LOOK_S = 0.5
"""So often a process that died is looked for."""

Groups = list[list[str]]


@dataclass(frozen=True)
class _Told:
    """What a process tells: a cell or an experiment is done, a cell failed, a group is done."""

    what: str
    id: str = ""
    x: float = 0.0
    series: str = ""
    error: SemiStreamError | None = None


def groups_of(experiments: Iterable[Experiment]) -> tuple[Groups, Groups]:
    """What runs side by side, the longest first, and what runs alone after that."""
    papers: dict[str, list[Experiment]] = {}
    alone: list[str] = []
    for one in experiments:
        if one.clock == "measured":
            alone.append(one.id)
        else:
            papers.setdefault(one.paper, []).append(one)
    longest = sorted(papers.values(), key=lambda group: -sum(e.cost * len(e.cells) for e in group))
    return [[one.id for one in group] for group in longest], [alone] if alone else []


def run_in_processes(
    experiments: Iterable[Experiment],
    folder: Path,
    scale: ScaleName,
    workdir: Path,
    *,
    seed: int = 1,
    again: bool = False,
    processes: int = 1,
    report: Report = lambda phase, done, total: None,
) -> Generator[Stored | Failed, None, None]:
    """As `run_experiments`, with so many processes at most.

    Several processes know only the experiments of this package. They end when the iterator is
    closed or fails; what they have stored by then stays.
    """
    chosen = list(experiments)
    if processes < 2 or len(chosen) < 2:
        ground = Ground(scale, workdir, seed)
        try:
            yield from run_experiments(chosen, folder, ground, again=again, report=report)
        finally:
            ground.close()
        return
    total, done = sum(len(one.cells) for one in chosen), 0
    report(CELLS, 0, total)
    together, alone = groups_of(chosen)
    pool = _Pool(folder, scale, workdir, seed, again, processes)
    try:
        for groups in (together, alone):
            for told in pool.run(groups):
                if told.what == "cell":
                    done += 1
                    report(CELLS, done, total)
                elif told.what == "failed":
                    assert told.error is not None
                    yield Failed(EXPERIMENTS[told.id], told.x, told.series, told.error)
                else:
                    yield stored(folder, EXPERIMENTS[told.id], scale, seed)
    finally:
        pool.close()


class _Pool:
    """Processes that take groups of experiments from a queue."""

    def __init__(
        self,
        folder: Path,
        scale: ScaleName,
        workdir: Path,
        seed: int,
        again: bool,
        processes: int,
    ) -> None:
        # A fork would copy threads of Arrow and of the reader halfway through their work.
        context = multiprocessing.get_context("spawn")
        self._groups: Any = context.Queue()
        self._told: Any = context.Queue()
        arguments = (self._groups, self._told, folder, scale, workdir, seed, again)
        self._processes: list[SpawnProcess] = [
            context.Process(target=_work, args=arguments, daemon=True) for _ in range(processes)
        ]
        for process in self._processes:
            process.start()

    def run(self, groups: Groups) -> Iterator[_Told]:
        """Run groups of experiments; what the processes tell until all are done."""
        for group in groups:
            self._groups.put(group)
        left = len(groups)
        while left:
            try:
                told: _Told = self._told.get(timeout=LOOK_S)
            except queue.Empty:
                self._check()
                continue
            if told.what == "group":
                left -= 1
            else:
                yield told

    def _check(self) -> None:
        for process in self._processes:
            if process.exitcode is not None:
                raise SemiStreamError(
                    f"a process that runs experiments ended with code {process.exitcode}",
                    hint="what went wrong stands above, if it could still say so; start again to"
                    " go on with what is not stored yet",
                )

    def close(self) -> None:
        """End the processes, whatever they do."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join()


def _work(
    groups: Any,
    told: Any,
    folder: Path,
    scale: ScaleName,
    workdir: Path,
    seed: int,
    again: bool,
) -> None:
    """What a process does: group after group, until it is terminated."""
    # Ctrl-C goes to all processes of a terminal; the one that started this one ends it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def report(phase: str, done: int, total: int | None) -> None:
        if parent is not None and not parent.is_alive():
            sys.exit("the process that started this one is gone")
        if done:
            told.put(_Told("cell"))

    ground = Ground(scale, workdir, seed)
    while True:
        chosen = [EXPERIMENTS[id_] for id_ in groups.get()]
        for one in run_experiments(chosen, folder, ground, again=again, report=report):
            if isinstance(one, Failed):
                told.put(_Told("failed", one.experiment.id, one.x, one.series, one.error))
            else:
                told.put(_Told("experiment", one.experiment.id))
        told.put(_Told("group"))
