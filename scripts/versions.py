"""Is a change faster? Versions of this repository in turns: `python scripts/versions.py --help`.

Each version is a process of its own that has the same master, stream and memory. They take turns,
so that a noisy machine hurts all alike. Results are made and not looked at: whether they are right
is for the tests to say.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
STREAM_ROWS = 4_000_000


def main() -> None:
    """Run all cells, and print what each version had in each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("versions", nargs="*", help="revisions, beside the files as they are")
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--memory", default="5%", help="several with commas, as all that follow")
    parser.add_argument("--skew", default="0,1")
    parser.add_argument("--batch-rows", default="100000")
    parser.add_argument("--mode", default="drained", help="drained, waiting")
    parser.add_argument("--io", default="buffered", help="buffered, direct")
    parser.add_argument("--threads", default="all", help="a number, or as many as by default")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of a turn")
    parser.add_argument("--workdir", type=Path, default=Path(tempfile.gettempdir()) / "versions")
    parser.add_argument("--cell", nargs=6, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cell:
        serve(options.rows, options.workdir, *options.cell)
        return
    with sources(options.versions) as folders:
        axes = [options.memory, options.skew, options.batch_rows, options.mode, options.io]
        for cell in itertools.product(*(axis.split(",") for axis in (*axes, options.threads))):
            print(f"memory {cell[0]}, skew {cell[1]}, {cell[2]} rows, {', '.join(cell[3:])}")
            compare(options, folders, cell)


@contextmanager
def sources(revisions: list[str]) -> Iterator[dict[str, Path]]:
    """Where the package of each version lies."""
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as worktrees:
        folders = {}
        for revision in revisions:
            place = str(Path(scratch) / revision.replace("/", "-"))
            git = ["git", "-C", str(HERE), "worktree"]
            subprocess.run([*git, "add", "--quiet", "--detach", place, revision], check=True)
            worktrees.callback(subprocess.run, [*git, "remove", "--force", place], check=True)
            folders[revision] = Path(place) / "src"
        yield {**folders, "as it is": HERE / "src"}


def compare(options: argparse.Namespace, folders: dict[str, Path], cell: tuple[str, ...]) -> None:
    """One cell, in which all versions take turns."""
    command = [sys.executable, __file__, f"--rows={options.rows}", f"--workdir={options.workdir}"]
    rates: dict[str, list[float]] = {name: [] for name in folders}
    with ExitStack() as running:
        processes = {}
        for name, folder in folders.items():
            processes[name] = running.enter_context(
                subprocess.Popen(
                    [*command, "--cell", *cell],
                    env={**os.environ, "PYTHONPATH": str(folder)},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            turn(processes[name], options.seconds)
        for _ in range(options.turns):
            for name, process in processes.items():
                rates[name].append(turn(process, options.seconds))
        for process in processes.values():
            process.communicate()
    width = max(map(len, rates))
    first = statistics.median(next(iter(rates.values())))
    for name, seen in rates.items():
        median = statistics.median(seen)
        low, high = min(seen) / 1e6, max(seen) / 1e6
        print(
            f"  {name:{width}}  {median / 1e6:.2f} M rows/s ({low:.2f} to {high:.2f})"
            f"  {median / first:.2f} x",
            flush=True,
        )


def turn(process: subprocess.Popen[str], seconds: float) -> float:
    """Rows per second of a version in its turn."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{seconds}\n")
    process.stdin.flush()
    line = process.stdout.readline()
    if not line:
        sys.exit("a version ended before its time")
    return float(line)


def serve(
    rows: int, workdir: Path, memory: str, skew: str, batch: str, mode: str, io: str, threads: str
) -> None:
    """Be one version: join for as many seconds as each line says, and say how fast."""
    from semistream.bench.masters import master_path, product_master
    from semistream.bench.peers.base import read_into_cache
    from semistream.joins.registry import make_join
    from semistream.workloads import sale_schema, sales

    batches = list(
        sales(STREAM_ROWS, products=rows, skew=float(skew), seed=1, batch_rows=int(batch))
    )
    with product_master(workdir, rows, io=io) as master:
        path = master_path(workdir, rows, seed=0)
        join = make_join(
            "sweepjoin",
            master,
            on="product_id",
            schema=sale_schema(),
            memory=memory,
            threads=None if threads == "all" else int(threads),
        )
        feed = join.drained if mode == "drained" else join.pushed
        stream = itertools.cycle(batches)
        for line in sys.stdin:
            if io == "buffered":
                read_into_cache(path)
            for _ in feed(next(stream)):
                pass
            done, start = 0, time.perf_counter()
            while time.perf_counter() - start < float(line):
                some = next(stream)
                for _ in feed(some):
                    pass
                done += some.num_rows
            print(done / (time.perf_counter() - start), flush=True)
        for _ in join.finish():
            pass
        join.close()


if __name__ == "__main__":
    main()
