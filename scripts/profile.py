"""Where the time of a join goes, kernel by kernel: `python scripts/profile.py --help`.

Needs Linux's `perf` (Debian: linux-perf). Kernels are compiled afresh, because only then does numba
know their names; that takes most of a minute.
"""

from __future__ import annotations

import argparse
import gc
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

GROUPS = (
    (r"matching.*(take_in|pack)|find_all|locate", "rows on their way in"),
    (r"read_rest|page_checksum", "checking pages"),
    (r"matching|write_out|memmove|memcpy", "joining pages, writing results"),
    (r"^\[k\]", "operating system: reads, memory"),
    (r"libpython|libarrow|numpy|lib\.cpython|_dispatcher|libc", "Python and Arrow, per batch"),
)


def main() -> None:
    """Run one cell under `perf` and print shares of the processor's time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--join", default="sweepjoin")
    parser.add_argument("--memory", default="1%")
    parser.add_argument("--skew", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--io", default="direct")
    parser.add_argument("--workdir", type=Path, help="where masters are kept between runs")
    parser.add_argument(
        "--drained", type=int, default=0, metavar="ROWS", help="micro-batches, each joined wholly"
    )
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    if shutil.which("perf") is None:
        sys.exit("perf is missing; on Debian: apt-get install linux-perf")
    with tempfile.TemporaryDirectory() as kernels:
        os.environ["NUMBA_CACHE_DIR"] = kernels
        profile(options, Path(kernels))


def profile(options: argparse.Namespace, folder: Path) -> None:
    """Warm the join up, then sample it for the time given."""
    from semistream.bench.masters import product_master
    from semistream.bench.peers.base import read_into_cache
    from semistream.joins.registry import make_join
    from semistream.workloads import sale_schema, sales

    sizes = {"batch_rows": options.drained} if options.drained else {}
    stream = list(sales(4_000_000, products=options.rows, skew=options.skew, seed=1, **sizes))
    with (
        product_master(options.workdir or folder, options.rows, io=options.io) as master,
        make_join(
            options.join,
            master,
            on="product_id",
            schema=sale_schema(),
            memory=options.memory,
            threads=options.threads,
        ) as join,
    ):

        def run(seconds: float) -> int:
            before = join.stats.rows_in
            end = time.perf_counter() + seconds
            while True:
                for batch in stream:
                    for _ in join.drained(batch) if options.drained else join.pushed(batch):
                        pass
                    if time.perf_counter() > end:
                        return join.stats.rows_in - before

        if options.io == "buffered":
            read_into_cache(master.path)
        run(options.seconds)
        write_names()
        data = folder / "perf.data"
        command = ["perf", "record", "-F", "1999", "-o", str(data), "-p", str(os.getpid())]
        sampler = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        start, wait_s = time.perf_counter(), join.stats.time_io_s
        rows = run(options.seconds)
        spent = time.perf_counter() - start
        wait_s = join.stats.time_io_s - wait_s
        sampler.terminate()
        sampler.wait()
    print(f"{options.join}, {options.rows:,} rows, {options.memory}, skew {options.skew:g}")
    print(
        f"{rows / spent / 1e6:.2f} M rows/s; waiting for the disk {wait_s / spent:.0%} of the time"
    )
    report(data)


def write_names() -> None:
    """Tell `perf` where each compiled function lies."""
    from numba.core.dispatcher import Dispatcher

    names: dict[int, str] = {}
    for dispatcher in [thing for thing in gc.get_objects() if isinstance(thing, Dispatcher)]:
        for compiled in dispatcher.overloads.values():
            library: Any = compiled.library  # type: ignore[attr-defined]
            for function in library._final_module.functions:
                if not function.is_declaration:
                    address = library._codegen._engine._ee.get_function_address(function.name)
                    if address:
                        names[address] = re.sub(r"^_ZN|B\d+v.*", "", function.name)
    places = sorted(names.items())
    with Path(f"/tmp/perf-{os.getpid()}.map").open("w") as file:
        for i, (address, name) in enumerate(places):
            end = places[i + 1][0] if i + 1 < len(places) else address + 0x4000
            file.write(f"{address:x} {min(end - address, 0x8000):x} {name[:100]}\n")


def report(data: Path) -> None:
    """Print the shares, gathered and the largest of them."""
    command = ["perf", "report", "-i", str(data), "--no-children", "--sort", "dso,sym"]
    text = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    gathered: defaultdict[str, float] = defaultdict(float)
    single = []
    for line in text.splitlines():
        found = re.match(r"\s+([\d.]+)%\s+(.*)", line)
        if found:
            share, name = float(found[1]), found[2]
            symbol = "[k]" + name if "[k]" in name else name
            for pattern, group in GROUPS:
                if re.search(pattern, symbol):
                    gathered[group] += share
                    break
            else:
                gathered["other"] += share
            single.append((share, re.sub(r"\s+", " ", name)))
    for group, share in sorted(gathered.items(), key=lambda item: -item[1]):
        print(f"{share:5.1f} %  {group}")
    print()
    for share, name in single[:15]:
        print(f"{share:5.1f} %  {name}")


if __name__ == "__main__":
    main()
