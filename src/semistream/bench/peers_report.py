"""The comparison as a section of a Markdown file, with plots beside it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from semistream.bench.goals import GOALS, LEAST_MASTER, MODES, Goal, Seen, not_ahead, seen_of
from semistream.bench.peers import OURS, PEERS
from semistream.bench.report import human, machine, replace_section, table
from semistream.bench.side_by_side import CACHES, COLD, ROW_BYTES, WARM, PeerResult

MARK = "peers"
BATCH_PLOT, GROWTH_PLOT = "peers-batch-rows.svg", "peers-growth.svg"
COMMAND = "semistream bench peers"

COLOURS = {
    "semistream-drained": "#0b6e99",
    "semistream-waiting": "#d1495b",
    "duckdb": "#edae49",
    "duckdb-index": "#c98f2b",
    "polars": "#8e6c8a",
    "pyarrow": "#7a7a7a",
    "rocksdb": "#66a182",
    "lmdb": "#2e4057",
    "sqlite": "#a2b86c",
    "postgres": "#4f7cac",
    "mariadb": "#b56576",
    "semistream-on-spark-drained": "#0b6e99",
    "semistream-on-spark-waiting": "#d1495b",
}
"""One colour for a system, in every plot."""


def write_report(
    path: Path, done: Sequence[PeerResult], environment: Mapping[str, Any]
) -> list[Path]:
    """Put tables into the file and plots into the folder `pictures` beside it; what was written."""
    pictures = path.parent / "pictures"
    pictures.mkdir(exist_ok=True)
    main_rows = done[0].product_rows
    main = [one for one in done if one.product_rows == main_rows]
    grown = growth_of(done)
    drawn = {BATCH_PLOT: _plot_batches(main, pictures / BATCH_PLOT)}
    if len({one.product_rows for one in grown}) > 1:
        drawn[GROWTH_PLOT] = _plot_growth(grown, pictures / GROWTH_PLOT)
    replace_section(path, MARK, _section(done, main, grown, environment, drawn))
    return [path, *drawn.values()]


def growth_of(done: Sequence[PeerResult]) -> list[PeerResult]:
    """The results in the middle of the grid for every size of the master, with the same memory."""
    first = done[0]
    return [
        one
        for one in done
        if one.why_not is None
        and (one.memory_bytes, one.skew, one.batch_rows, one.cache)
        == (first.memory_bytes, first.skew, first.batch_rows, WARM)
    ]


def _section(
    done: Sequence[PeerResult],
    main: Sequence[PeerResult],
    grown: Sequence[PeerResult],
    environment: Mapping[str, Any],
    drawn: Mapping[str, Path],
) -> str:
    rows = main[0].product_rows
    parts = [
        f"`{COMMAND}`, {rows:,} rows of {ROW_BYTES} bytes in the master. {machine(environment)}",
        "Rates are rows/s, the median of the rounds. In brackets: how many times that semistream "
        "has where each micro-batch is joined completely (drained), and where rows may wait. "
        "*Warm*: files in the operating system's cache. *Cold*: direct reads, or files dropped "
        "from that cache before every micro-batch. All results were verified"
        + (
            "."
            if all(one.verified for one in done if one.why_not is None)
            else ", and some are **wrong**: see the table."
        ),
        f"![Throughput against the size of micro-batches](pictures/{BATCH_PLOT})",
    ]
    for cache in CACHES:
        cells = [one for one in main if one.cache == cache and one.where == "in process"]
        if cells:
            parts += [f"### {cache.capitalize()}", _grid(cells)]
    # A run that follows growth has a cell of the same size, named by its bytes.
    spark = [one for one in main if one.where != "in process" and one.memory == main[0].memory]
    if spark:
        parts += ["### On Spark", _spark(spark)]
    if GROWTH_PLOT in drawn:
        parts += [
            "### As the master grows",
            f"Memory {main[0].memory_bytes / 1e6:.0f} MB for every size, skew {main[0].skew:g}, "
            f"micro-batches of {main[0].batch_rows:,} rows, warm.",
            f"![Throughput against the size of the master](pictures/{GROWTH_PLOT})",
            _growth(grown),
            *_costs(grown),
        ]
    parts += ["### Who is ahead", _ahead(done), "### Goals", _goals(done)]
    parts += ["### What the memory bounds", _bounds(main)]
    return "\n\n".join(parts)


def _grid(cells: Sequence[PeerResult]) -> str:
    points = list(dict.fromkeys((one.memory, one.skew, one.batch_rows) for one in cells))
    systems = list(dict.fromkeys(one.system for one in cells))
    found = {(one.system, one.memory, one.skew, one.batch_rows): one for one in cells}
    lines = []
    for system in systems:
        rates = [_rate(found.get((system, *point))) for point in points]
        lines.append([system, *rates])
    heads = [f"{memory}, skew {skew:g}, {human(rows)}" for memory, skew, rows in points]
    return table(["memory, skew, batch", *heads], lines)


def _rate(one: PeerResult | None) -> str:
    if one is None:
        return ""
    if one.why_not is not None:
        return "out of memory" if "memory" in one.why_not else "failed"
    text = human(one.rows_per_s) + ("" if one.verified else " **wrong**")
    if one.system in OURS:
        return f"**{text}**"
    ratios = (one.ratio_to_semistream, one.ratio_to_waiting)
    said = ", ".join(f"{1 / ratio:.1f}" for ratio in ratios if ratio)
    return f"{text} ({said})" if said else text


def _spark(cells: Sequence[PeerResult]) -> str:
    lines = [
        [
            one.system,
            human(one.rows_per_s),
            f"{1 / one.ratio_to_semistream:.1f} x" if one.ratio_to_semistream else "",
            "yes" if one.verified else "**no**",
        ]
        for one in cells
    ]
    first = cells[0]
    head = f"Micro-batches of {first.batch_rows:,} rows, memory {first.memory}, skew {first.skew:g}"
    columns = ["system", "rows/s", "semistream drained is", "verified"]
    return f"{head}, warm:\n\n" + table(columns, lines)


def _growth(grown: Sequence[PeerResult]) -> str:
    """Rates of all sizes, and whether those fall by more than the share of hits does."""
    sizes = sorted({one.product_rows for one in grown})
    found = {(one.system, one.product_rows): one for one in grown}
    systems = [
        name
        for name in dict.fromkeys(one.system for one in grown)
        if all((name, size) in found for size in sizes)
    ]
    lines = []
    for name in systems:
        cells = [found[name, size] for size in sizes]
        first, last = cells[0], cells[-1]
        kept = last.rows_per_s / first.rows_per_s
        verdict = ["", ""]
        if first.hit_share and last.hit_share is not None:
            hits_kept = last.hit_share / first.hit_share
            verdict = [f"{hits_kept:.2f}", "yes" if kept >= hits_kept else "**no**"]
        lines.append([name, *(human(one.rows_per_s) for one in cells), f"{kept:.2f}", *verdict])
    heads = [*(f"{size:,}" for size in sizes), "last / first", "hits, last / first"]
    return table(["rows of the master", *heads, "falls no more than the hits"], lines)


def _costs(grown: Sequence[PeerResult]) -> list[str]:
    """What rows and misses cost us, for every size of the master."""
    # Of cells that were run twice the last counts, as in the table of rates.
    found = {(one.system, one.product_rows): one for one in grown}
    ours = [one for one in found.values() if one.hit_share is not None and one.hit_share < 1]
    if not ours:
        return []
    lines = [
        [
            one.system,
            f"{one.product_rows:,}",
            f"{one.hit_share:.0%}",
            f"{1e9 / one.rows_per_s:.0f} ns",
            f"{1e6 / one.rows_per_s / (1 - one.hit_share):.2f} µs",
        ]
        for one in sorted(ours, key=lambda one: (one.system, one.product_rows))
        if one.hit_share is not None
    ]
    heads = ["system", "rows of the master", "hits", "a row takes", "a row takes, per miss"]
    text = (
        "The cache answers a smaller share of the rows where the master is larger (hits); the last"
    )
    return [f"{text} column is the time of a row over the share of misses.", table(heads, lines)]


def _ahead(done: Sequence[PeerResult]) -> str:
    """All cells in which semistream is not ahead."""
    large = f"With a master of at least {LEAST_MASTER} times the memory"
    lines = [
        [
            one.system,
            one.cache,
            f"{one.memory}, skew {one.skew:g}, {human(one.batch_rows)}",
            mode,
            f"{times:.2f}",
        ]
        for one, mode, times in not_ahead(done)
    ]
    if not lines:
        return f"{large}, semistream is ahead of every system in every cell."
    columns = ["system", "cache", "memory, skew, batch", "semistream", "is, times its rate"]
    return f"{large}, semistream is ahead but for these:\n\n" + table(columns, lines)


def _goals(done: Sequence[PeerResult]) -> str:
    """Every goal that the comparison says something about."""
    lines = []
    for goal in GOALS:
        seen = seen_of(goal, done)
        if not seen:
            continue
        shown = [str(seen.get(mode, "")) for mode in MODES]
        lines.append([str(goal), f"{goal.times:g}", *shown, _reached(goal, seen)])
    columns = ["systems and cells", "goal, times", *MODES, "reached"]
    return "How many times their rate semistream has, over these cells:\n\n" + table(columns, lines)


def _reached(goal: Goal, seen: Mapping[str, Seen]) -> str:
    """Whether semistream has reached a goal in all modes that it is for, or in which."""
    reached = [mode for mode in goal.modes if mode in seen and seen[mode].least >= goal.times]
    if len(reached) == len(goal.modes):
        return "yes"
    return f"{reached[0]} only" if reached else "**no**"


def _bounds(main: Sequence[PeerResult]) -> str:
    names = [name for name in PEERS if any(one.system == name for one in main)]
    return table(["system", "the memory is"], [[name, PEERS[name].memory_is] for name in names])


def _plot_batches(main: Sequence[PeerResult], path: Path) -> Path:
    """Throughput against rows of a micro-batch, warm beside cold, at the middle's memory, skew."""
    first = main[0]
    caches = [cache for cache in CACHES if any(one.cache == cache for one in main)]
    panels = {
        cache: [
            one
            for one in main
            if (one.memory, one.skew, one.cache) == (first.memory, first.skew, cache)
            and one.where == "in process"
        ]
        for cache in caches
    }
    titles = {
        WARM: "warm: all files in the system's cache",
        COLD: "cold: direct reads, or files dropped",
    }
    return _plot(
        [(titles[cache], "batch_rows", cells) for cache, cells in panels.items()],
        "rows of a micro-batch",
        path,
    )


def _plot_growth(grown: Sequence[PeerResult], path: Path) -> Path:
    wheres = list(dict.fromkeys(one.where for one in grown))
    return _plot(
        [(where, "product_rows", [one for one in grown if one.where == where]) for where in wheres],
        "rows of the master",
        path,
    )


def _plot(panels: Sequence[tuple[str, str, Iterable[PeerResult]]], across: str, path: Path) -> Path:
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "semistream"  # the same results give the same file
    mpl.rcParams["svg.fonttype"] = "none"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        1, len(panels), figsize=(5.2 * len(panels), 4.2), sharey=True, squeeze=False
    )
    for axis, (title, field, cells) in zip(axes[0], panels, strict=True):
        lines: dict[str, list[tuple[int, float]]] = {}
        for one in cells:
            if one.why_not is None:
                lines.setdefault(one.system, []).append((getattr(one, field), one.rows_per_s))
        for system, points in lines.items():
            ours = system.startswith("semistream")
            x, y = zip(*sorted(points), strict=True)
            axis.loglog(
                x,
                y,
                marker="o",
                markersize=4,
                linewidth=2.4 if ours else 1.2,
                color=COLOURS.get(system),
                label=system,
                zorder=3 if ours else 2,
            )
        axis.set_title(title, fontsize=10)
        axis.set_xlabel(across)
        axis.grid(True, which="major", alpha=0.3)
        axis.legend(fontsize=7, frameon=False)
    axes[0][0].set_ylabel("stream rows joined per second")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    return path
