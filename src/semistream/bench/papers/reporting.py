"""The report: every experiment with its plot, the paper's claim, our result and the verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from semistream.bench.papers.contradictions import CONTRADICTIONS
from semistream.bench.papers.experiment import CLOCKS, PAPERS, Experiment
from semistream.bench.papers.ground import SCALES
from semistream.bench.papers.rules import OUTCOMES, Verdict, number
from semistream.bench.papers.running import Stored

HEAD = """\
# The papers' experiments, reproduced

Every figure and table of the papers that can be run: what the paper claims, what came out here, and
a verdict. The verdict is computed by a rule that stands beside the experiment in
`src/semistream/bench/papers`; nobody wrote it by hand. This page was written by

    semistream bench run papers --scale SCALE
    semistream bench report

- **reproduced**: all that the rule checks holds; **direction only**: the shape holds, the size does
  not; **not reproduced**: the shape does not hold. What failed is marked in the reason.
- *Numbers of the papers* are stars in the plots. Where a paper has only a curve in a figure, there
  are none: the curves themselves could not be read.
- *Scale.* Each result says its own. R and memory are smaller than the papers' by one factor
  ({scales}, or not at all); pages, partitions, disk and skew are the papers'. By the papers' own
  equations rates do not change by that. {effort}
- *Memory.* Our rows take less memory than the papers'. A join gets the memory in which as many rows
  find room as in the paper's; stored results say how much that was.
- *Clocks.* {clocks}
"""


def report_text(experiments: Iterable[Experiment], found: Mapping[str, Stored]) -> str:
    """The report as Markdown; experiments without complete results are listed as such."""
    listed = list(experiments)
    parts = [
        HEAD.format(
            scales=", ".join(
                f"{name} 1/{1 / share:g}" for name, share in SCALES.items() if share < 1
            ),
            effort=_effort(found),
            clocks=" ".join(f"*{name}*: {what}." for name, what in CLOCKS.items()),
        ),
        _summary(listed, found),
    ]
    for paper, title in PAPERS.items():
        of_paper = [one for one in listed if one.paper == paper]
        if of_paper:
            parts.append(f'## <a id="{paper}"></a>{title}\n')
            parts += [_section(one, found.get(one.id)) for one in of_paper]
    parts.append(_contradictions())
    return "\n".join(parts)


def _effort(found: Mapping[str, Stored]) -> str:
    """What it took to get the results."""
    cells = [cell for one in found.values() for cell in one.cells.values()]
    minutes = sum(cell.get("took_processor_s", 0.0) for cell in cells) / 60
    return f"The {len(cells):,} cells shown here took {minutes:.0f} minutes of one processor."


def _summary(listed: list[Experiment], found: Mapping[str, Stored]) -> str:
    """How many of each paper came out how, then all experiments in one table."""
    verdicts = {one.id: found[one.id].verdict for one in listed if one.id in found}
    rows = [
        "| paper | experiments | " + " | ".join(OUTCOMES) + " |",
        "|---|" + "---:|" * (len(OUTCOMES) + 1),
    ]
    total: Counter[str] = Counter()
    for paper, title in PAPERS.items():
        of_paper = [one for one in listed if one.paper == paper]
        counts = Counter(_outcome(verdicts.get(one.id)) for one in of_paper)
        total += counts
        if of_paper:
            name = f"[{paper}](#{paper}): {title.split(': ')[-1] if ': ' in title else title}"
            rows.append(_counted(name, len(of_paper), counts))
    rows.append(_counted("**all**", len(listed), total))
    missing = [one.id for one in listed if one.id not in found]
    if missing:
        rows.append("\nNo results are stored of " + ", ".join(missing) + ".")
    rows += ["", "| id | the paper's claim | verdict |", "|---|---|---|"]
    for one in listed:
        outcome = _outcome(verdicts.get(one.id))
        rows.append(f"| [{one.id}](#{one.id.lower()}) | {one.claim} | {outcome} |")
    return "\n".join(rows) + "\n"


def _outcome(verdict: Verdict | None) -> str:
    return "no results stored" if verdict is None else verdict.outcome


def _counted(name: str, number: int, counts: Mapping[str, int]) -> str:
    return f"| {name} | {number} | " + " | ".join(str(counts.get(o, 0)) for o in OUTCOMES) + " |"


def _section(one: Experiment, stored: Stored | None) -> str:
    lines = [f'### <a id="{one.id.lower()}"></a>{one.id}: {one.title}\n']
    verdict = None if stored is None else stored.verdict
    if stored is None or verdict is None:
        lines.append(f"*Claim.* {one.claim}.\n\nNo results are stored.\n")
        return "\n".join(lines)
    fixed = ", ".join(f"{name} {value}" for name, value in one.fixed.items()) or "nothing else"
    lines += [
        f"![{one.id}](pictures/papers/{one.id}.svg)\n",
        f"*Claim.* {one.claim}.\n",
        f"*Verdict: **{verdict.outcome}**.* {verdict.reason}.\n",
        f"*How.* {one.x.label} varies; fixed: {fixed}. Clock: {one.clock}; scale {stored.scale}."
        + (f" {one.remark}" if one.remark else "")
        + "\n",
        _table(one, stored),
    ]
    return "\n".join(lines)


def _table(one: Experiment, stored: Stored) -> str:
    curves = stored.curves
    marked = [series for series in one.series if one.marks.get(series)]
    head = [one.x.label, *one.series, *(f"{series} (paper)" for series in marked)]
    rows = ["| " + " | ".join(head) + " |", "|" + "---:|" * len(head)]
    for x in sorted({*one.values, *(x for series in marked for x in one.marks[series])}):
        cells = [number(curves[series][x]) if x in curves[series] else "" for series in one.series]
        cells += [
            number(one.marks[series][x]) if x in one.marks[series] else "" for series in marked
        ]
        rows.append("| " + " | ".join([number(x), *cells]) + " |")
    return "\n".join(rows) + "\n"


def _contradictions() -> str:
    rows = ["| # | finding | here |", "|---:|---|---|"]
    rows += [
        f"| {number} | {one.finding} | {one.here} |"
        for number, one in enumerate(CONTRADICTIONS, start=1)
    ]
    return (
        "## Contradictions, gaps and likely errors in the papers\n\n"
        "Found while implementing them. Where a verdict above hangs on one, the experiment says "
        "so.\n\n" + "\n".join(rows) + "\n"
    )
