"""Pictures of stored results, with the paper's numbers as marks."""

from __future__ import annotations

from pathlib import Path

from semistream.bench.papers.running import Stored
from semistream.bench.plots import pyplot, style

SUFFIXES = (".svg", ".png", ".pdf")


def draw(stored: Stored, path: Path) -> None:
    """Draw the curves of an experiment into a file."""
    plots = pyplot("a plot")
    experiment = stored.experiment
    figure, axes = plots.subplots(figsize=(5.2, 3.2))
    for number, (series, curve) in enumerate(stored.curves.items()):
        colour, marker, line = style(series, number)
        xs = sorted(curve)
        ys = [curve[x] for x in xs]
        axes.plot(xs, ys, color=colour, marker=marker, ls=line, ms=4, label=series)
        marks = experiment.marks.get(series, {})
        if marks:
            axes.scatter(
                list(marks),
                list(marks.values()),
                marker="*",
                s=110,
                facecolor="none",
                edgecolor=colour,
                zorder=3,
                label=f"{series}, as the paper reports",
            )
    axes.set_xlabel(experiment.x.label)
    axes.set_ylabel(experiment.y.label)
    if experiment.x.log:
        axes.set_xscale("log")
        axes.set_xticks(experiment.values, [f"{x:g}" for x in experiment.values])
        axes.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
    if experiment.y.log:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.set_title(f"{experiment.id}: {experiment.title}", fontsize=9, wrap=True)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7, framealpha=0.6)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    # No date: a picture of the same results is the same file.
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    plots.close(figure)
