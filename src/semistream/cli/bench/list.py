"""`semistream bench list`: which benchmarks there are."""

from __future__ import annotations

from pathlib import Path

import click

from semistream.bench import BENCHMARKS
from semistream.bench.papers import EXPERIMENTS
from semistream.bench.papers.running import best_stored
from semistream.cli import render
from semistream.cli.options import json_option, results_option


@click.command("list")
@results_option
@json_option
def list_benchmarks(results: Path, as_json: bool) -> None:
    """List the benchmarks, and the papers' experiments with the verdicts of stored results."""
    listed = [
        {"name": name, "id": name, "paper": None, "what": what, "claim": None, "verdict": None}
        for name, what in BENCHMARKS.items()
    ]
    for one in EXPERIMENTS.values():
        stored = best_stored(results, one)
        verdict = None if stored is None else stored.verdict
        listed.append(
            {
                "name": one.id,
                "id": one.id,
                "paper": one.paper,
                "what": one.title,
                "claim": one.claim,
                "verdict": None if verdict is None else verdict.outcome,
                "reason": None if verdict is None else verdict.reason,
                "scale": None if stored is None else stored.scale,
            }
        )
    if as_json:
        render.document(listed)
        return
    columns = ("name", "paper", "measures", "verdict")
    rows = [
        tuple(str(one[name] or "") for name in ("name", "paper", "what", "verdict"))
        for one in listed
    ]
    render.table(columns, rows[: len(BENCHMARKS)], rows[len(BENCHMARKS) :])
    render.line("Run one with: semistream bench run NAME, or all of a paper, or papers")
