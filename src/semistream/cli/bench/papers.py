"""`semistream bench run ID`, `plot` and `report`: the papers' experiments."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from pathlib import Path
from typing import Any

import click

from semistream.bench.masters import default_workdir
from semistream.bench.papers import ALL, EXPERIMENTS, PAPERS, Experiment, chosen
from semistream.bench.papers.ground import SCALES, ScaleName
from semistream.bench.papers.plots import SUFFIXES, draw
from semistream.bench.papers.reporting import report_text
from semistream.bench.papers.rules import OUTCOMES
from semistream.bench.papers.running import Failed, Stored, best_stored, stored
from semistream.bench.papers.workers import run_in_processes
from semistream.cli import render
from semistream.cli.options import json_option, results_option, workdir_option
from semistream.core.errors import OptionError, unknown_name
from semistream.core.progress import TerminalProgress

REPORT = Path("docs/reproduction.md")
PICTURES = Path("docs/pictures/papers")


class RunGroup(click.Group):
    """The benchmarks, and an experiment of a paper by its id, a paper, or all of them."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = super().get_command(ctx, cmd_name)
        if found is not None or cmd_name not in (*ALL, *PAPERS, *EXPERIMENTS):
            return found
        return run_command(cmd_name)


def run_command(name: str) -> click.Command:
    """The command that runs the experiments of a name."""
    about = (
        EXPERIMENTS[name].title
        if name in EXPERIMENTS
        else f"Run the experiments of {PAPERS[name]}."
        if name in PAPERS
        else "Run the experiments of all papers, or of one (see `bench list`)."
    )

    @click.command(name, help=f"{about}\n\n{_HELP}")
    @click.option(
        "--scale",
        type=click.Choice(list(SCALES)),
        default="small",
        show_default=True,
        help="Sizes of R and memory: "
        + ", ".join(f"{one} {share:g}" for one, share in SCALES.items())
        + " of the papers'.",
    )
    @click.option("--seed", type=int, default=1, show_default=True, help="Seed of the streams.")
    @click.option("--again", is_flag=True, help="Run what is stored already, too.")
    @click.option(
        "--jobs",
        type=click.IntRange(min=1),
        help="Processes that run experiments at the same time.  [default: one a processor]",
    )
    @results_option
    @workdir_option
    @json_option
    @click.pass_context
    def command(
        ctx: click.Context,
        scale: ScaleName,
        seed: int,
        again: bool,
        jobs: int | None,
        results: Path,
        workdir: Path | None,
        as_json: bool,
    ) -> None:
        ctx.exit(_run(chosen(name), scale, seed, again, jobs, results, workdir, as_json))

    return command


_HELP = (
    "Each cell is stored when it is done, and not run again: an interrupted run goes on where it "
    "was. Ends with code 1 if a join did not give what it must, or a cell could not be run."
)


def _run(
    experiments: list[Experiment],
    scale: ScaleName,
    seed: int,
    again: bool,
    jobs: int | None,
    results: Path,
    workdir: Path | None,
    as_json: bool,
) -> int:
    known = [stored(results, one, scale, seed) for one in experiments]
    cells = sum(len(one.cells) for one in experiments)
    there = 0 if again else sum(len(one.cells) for one in known)
    render.note(f"{len(experiments)} experiments, {cells} cells, of which {there} are stored")
    done: list[Stored] = []
    failed = 0
    with TerminalProgress() as bar:
        running = run_in_processes(
            experiments,
            results,
            scale,
            default_workdir() if workdir is None else workdir,
            seed=seed,
            again=again,
            processes=jobs or len(os.sched_getaffinity(0)),
            report=bar,
        )
        with contextlib.closing(running):
            for one in running:
                if isinstance(one, Failed):
                    failed += 1
                    render.note(f"{one.experiment.id} {one.series} at {one.x:g}: {one.error}")
                    continue
                done.append(one)
                verdict = one.verdict
                outcome = "not complete" if verdict is None else verdict.outcome
                render.note(f"{one.experiment.id:8} {outcome}")
    if as_json:
        render.document([one.to_dict() for one in done])
    else:
        _show(done)
    return 1 if failed or not all(one.is_verified for one in done) else 0


def _show(done: list[Stored]) -> None:
    order = {name: number for number, name in enumerate(EXPERIMENTS)}
    rows = []
    for one in sorted(done, key=lambda each: order[each.experiment.id]):
        verdict = one.verdict
        outcome = "not complete" if verdict is None else verdict.outcome
        reason = "" if verdict is None else verdict.reason
        rows.append((one.experiment.id, one.experiment.claim, render.bold(outcome), reason))
    render.table(("id", "the paper's claim", "verdict", "because"), rows)
    counts = Counter(one.verdict.outcome for one in done if one.verdict is not None)
    render.line(", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES))


@click.command("plot")
@click.argument("name")
@click.option("--scale", type=click.Choice(list(SCALES)), help="[default: the largest stored]")
@click.option(
    "--to",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=PICTURES,
    show_default=True,
    help="Folder of the pictures.",
)
@click.option("--format", "suffix", type=click.Choice([one[1:] for one in SUFFIXES]), default="svg")
@results_option
@json_option
def plot_command(
    name: str,
    scale: ScaleName | None,
    folder: Path,
    suffix: str,
    results: Path,
    as_json: bool,
) -> None:
    """Draw stored results of NAME: an experiment's id, a paper, or all."""
    found = _found(chosen(name), results, scale)
    if not found:
        raise OptionError(
            f"no complete results of {name} below {results}",
            hint=f"run them first: semistream bench run {name}",
        )
    paths = []
    with TerminalProgress() as bar:
        for number, one in enumerate(found):
            bar("plots", number, len(found))
            paths.append(folder / f"{one.experiment.id}.{suffix}")
            draw(one, paths[-1])
    if as_json:
        render.document([str(path) for path in paths])
    else:
        render.line(f"{len(paths)} pictures in {folder}")


@click.command("report")
@click.option("--scale", type=click.Choice(list(SCALES)), help="[default: the largest stored]")
@click.option(
    "--to",
    "path",
    type=click.Path(path_type=Path, dir_okay=False),
    default=REPORT,
    show_default=True,
    help="File of the report; its pictures lie beside it, in pictures/papers.",
)
@results_option
@json_option
def report_command(scale: ScaleName | None, path: Path, results: Path, as_json: bool) -> None:
    """Write the report: every experiment with its plot, claim, result and verdict."""
    found = {one.experiment.id: one for one in _found(chosen("all"), results, scale)}
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = path.parent / PICTURES.relative_to(REPORT.parent)
    with TerminalProgress() as bar:
        for number, one in enumerate(found.values()):
            bar("plots", number, len(found))
            draw(one, folder / f"{one.experiment.id}.svg")
    path.write_text(report_text(EXPERIMENTS.values(), found))
    counts = Counter(one.verdict.outcome for one in found.values() if one.verdict is not None)
    if as_json:
        document: dict[str, Any] = {"path": str(path), "experiments": len(EXPERIMENTS)}
        render.document(document | {outcome: counts[outcome] for outcome in OUTCOMES})
        return
    told = ", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES)
    render.line(f"{path}: {len(found)} of {len(EXPERIMENTS)} experiments, {told}")


def _found(experiments: list[Experiment], results: Path, scale: ScaleName | None) -> list[Stored]:
    """Complete results."""
    if scale is not None and scale not in SCALES:
        raise unknown_name("scale", scale, SCALES)
    all_found = [
        best_stored(results, one) if scale is None else stored(results, one, scale)
        for one in experiments
    ]
    return [one for one in all_found if one is not None and one.is_complete]
