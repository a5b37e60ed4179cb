"""The limits as a section of a Markdown file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from semistream.bench.limits import LimitsResult, MachineLimits
from semistream.bench.report import human, machine, replace_section, table

MARK = "limits"
COMMAND = "semistream bench limits"


def write_report(
    path: Path,
    limits: MachineLimits,
    done: Sequence[LimitsResult],
    identity: float | None,
    environment: Mapping[str, Any],
    rows: int,
) -> None:
    """Put the tables into the file."""
    parts = [
        f"`{COMMAND}`, {rows:,} rows in the master. {machine(environment)}",
        table(["what", "how fast"], [list(pair) for pair in facts(limits, identity)]),
        "Pages are per stream row: ours, Belady's MIN on a page cache of the same memory that "
        "answers row by row, and the fewest that any join needs (see [limits](limits.md)). The "
        "share is our rate over the rate that the limit allows.",
        table(
            [
                "memory",
                "skew",
                "batch",
                "cache",
                "join",
                "rows/s",
                "pages",
                "MIN",
                "fewest",
                "limit that binds",
                "share of it",
            ],
            [
                [
                    one.memory,
                    f"{one.skew:g}",
                    human(one.batch_rows),
                    one.cache,
                    one.system,
                    human(one.rows_per_s),
                    f"{one.pages:.3f}",
                    f"{one.best_page_cache:.3f}",
                    f"{one.fewest_pages:.3f}",
                    one.binds,
                    f"{one.share_of_limit:.0%}",
                ]
                for one in done
            ],
        ),
    ]
    replace_section(path, MARK, "\n\n".join(parts))


def facts(limits: MachineLimits, identity: float | None) -> list[tuple[str, str]]:
    """The machine's rates, named."""
    size = limits.page_bytes

    def bandwidth(pages: float) -> str:
        return f"{pages * size / 1e9:.2f} GB/s"

    depths = ", ".join(f"{human(rate)} ({d})" for d, rate in limits.random_direct.items())
    through = ", ".join(f"{bandwidth(rate)} ({d})" for d, rate in limits.sequential_direct.items())
    shares = ", ".join(
        f"{human(rate)} ({share:.0%})" for share, rate in limits.sorted_direct.items()
    )
    found = [
        (f"direct reads of {size} bytes at random, per second (reads in flight)", depths),
        ("direct reads in order (reads in flight)", through),
        ("direct reads of a share of the pages, in order, pages per second (share)", shares),
        ("buffered reads at random, in order", f"{human(limits.random_buffered)} pages/s, "
         f"{bandwidth(limits.sequential_buffered)}"),
        ("random reads of memory, 8 bytes", f"{human(limits.words_per_s)}/s"),
    ]  # fmt: skip
    for group in (limits.one, limits.all):
        who = f"{group.threads} thread{'s' if group.threads > 1 else ''}"
        warm = ", ".join(f"{human(rate)} ({s:.0%})" for s, rate in group.sorted_buffered.items())
        found += [
            (f"{who}: buffered reads of a share of the pages, in order, pages per second (share)",
             warm),
            (f"{who}: random reads of memory, a line of 64 bytes", f"{human(group.lines_per_s)}/s"),
            (f"{who}: copies of Arrow data", f"{group.copied_bytes_per_s / 1e9:.2f} GB/s"),
        ]  # fmt: skip
    if identity is not None:
        found.append(("Spark's identity pipeline", f"{human(identity)} rows/s"))
    return found
