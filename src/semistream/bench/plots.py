"""How pictures of benchmarks are drawn: one style, one colour and marker per algorithm."""

from __future__ import annotations

from typing import Any

from semistream.core.errors import OptionError

_COLOURS = (
    "#1f77b4", "#d62728", "#2ca02c", "#ff7f0e", "#9467bd", "#8c564b", "#e377c2", "#17becf",
    "#bcbd22", "#7f7f7f",
)  # fmt: skip
_MARKERS = "os^Dv<>Pph"

STYLES: dict[str, tuple[str, str]] = {
    name: (_COLOURS[number % len(_COLOURS)], _MARKERS[number % len(_MARKERS)])
    for number, name in enumerate(
        (
            "meshjoin",
            "inlj",
            "hybridjoin",
            "cachejoin",
            "optimisedxhybridjoin",
            "rmeshjoin",
            "xhybridjoin",
            "ssij",
            "ssbj",
            "sscj",
        )
    )
}
"""Colour and marker of an algorithm, in every picture."""


def style(series: str, number: int) -> tuple[str, str, str]:
    """Colour, marker and line of a series: its algorithm's, broken lines for variants of one
    ("hybridjoin, …"); else those of its place."""
    algorithm = series.partition(",")[0]
    if algorithm in STYLES:
        line = "-" if algorithm == series else ("--", ":", "-.")[number % 3]
        return (*STYLES[algorithm], line)
    return _COLOURS[number % len(_COLOURS)], _MARKERS[number % len(_MARKERS)], "-"


def pyplot(what: str) -> Any:
    """matplotlib's pyplot for files; an error that says that `what` needs it."""
    try:
        import matplotlib as mpl

        mpl.use("agg")
        from matplotlib import pyplot as plots
    except ImportError:
        raise OptionError(
            f"{what} needs matplotlib", hint="pip install 'semistream[plots]'"
        ) from None
    # Text as text, and no random names: small files that change only when the picture does.
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "semistream", "font.size": 9})
    return plots
