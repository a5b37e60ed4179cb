"""Thesis ch. 4: R-MESHJOIN."""

from __future__ import annotations

from semistream.bench.papers.equations import (
    MB,
    POINTER_BYTES,
    STREAM_BYTES,
    THESIS_FUDGE,
    Setting,
    best_pages,
    reduced_mesh,
    reduced_mesh_rate,
)
from semistream.bench.papers.experiment import Axis, Experiment, Measured
from semistream.bench.papers.ground import Ground, Held
from semistream.bench.papers.machine import CACHED_FILE, PAGE_BYTES
from semistream.bench.papers.rules import (
    Check,
    Curves,
    Verdict,
    above,
    close,
    falls,
    flat,
    holds,
    judge,
    near,
    peaks,
    rises,
    saturates,
)

ROWS = 3_500_000
PARTITIONS = 10
"""l of Tables 4.2 and 4.3, which do not say it: it fits all their rows, with n_R = 3.5 M."""

MEMORY = Axis("memory", "MB")
MASTER = Axis("rows of R", "M", log=True)
MASTERS = (0.5, 1, 2, 4, 8, 16)
RATE = Axis("service rate", "rows/s")
BUFFER = Axis("disk buffer", "MB", log=True)
BUFFERS = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8)


def setting(memory: float, rows: float = ROWS) -> Setting:
    """M in MB, with the sizes of ch. 4."""
    return Setting(memory * MB, rows, THESIS_FUDGE, POINTER_BYTES, skew=0.0)


def _best(memory: float, rows: float = ROWS) -> int:
    return best_pages(setting(memory, rows), CACHED_FILE, reduced_mesh_rate)


def _best_of(ground: Ground, x: float, series: str) -> Measured:
    """The best buffer in MB: of MESHJOIN by Eq. 3.3, of R-MESHJOIN by Eq. 4.5."""
    pages = best_pages(setting(x), CACHED_FILE) if series == "meshjoin" else _best(x)
    return Measured(pages * PAGE_BYTES / MB)


def _best_by_master(ground: Ground, x: float, series: str) -> Measured:
    pages = best_pages(setting(100, x * 1e6), CACHED_FILE)
    return Measured(pages * PAGE_BYTES / MB)


def _play(ground: Ground, join: str, waiting: float, rows: float) -> Measured:
    played = ground.play_sales(
        join, rows=ground.scaled(rows), held=Held(waiting=waiting * ground.share), skew=0.0
    )
    return Measured(played.rate(CACHED_FILE), played.verified, played.facts())


def _by_hash(ground: Ground, x: float, series: str) -> Measured:
    return _play(ground, "rmeshjoin", x * MB / (THESIS_FUDGE * STREAM_BYTES), ROWS)


def _by_buffer(ground: Ground, x: float, series: str) -> Measured:
    """With the hash table fixed at 50 MB, memory grows with the buffer."""
    pages = x * MB / PAGE_BYTES
    return Measured(reduced_mesh_rate(setting(50 + x), pages, CACHED_FILE))


def _in_memory(ground: Ground, x: float, series: str) -> Measured:
    return Measured(reduced_mesh_rate(setting(50), x * MB / PAGE_BYTES, CACHED_FILE))


def _table_2(ground: Ground, x: float, series: str) -> Measured:
    one, pages = setting(x), _best(x)
    held = one.waiting(pages)
    return Measured(
        {
            "disk buffer, MB": pages * PAGE_BYTES / MB,
            "hash table, MB": held * THESIS_FUDGE * STREAM_BYTES / MB,
            "queue, MB": held * POINTER_BYTES / MB,
            "w, rows": reduced_mesh(one, pages, CACHED_FILE, PARTITIONS).w,
        }[series]
    )


def _table_3(ground: Ground, x: float, series: str) -> Measured:
    found = reduced_mesh(setting(x), _best(x), CACHED_FILE, PARTITIONS)
    return Measured(found.c_loop_s * 1000 if series == "c_loop, ms" else found.rate / 1000)


def _table_4(ground: Ground, x: float, series: str) -> Measured:
    one = setting(100, x * 1e6)
    pages = _best(100, x * 1e6)
    found = reduced_mesh(one, pages, CACHED_FILE)
    return Measured(
        {
            "disk buffer, MB": pages * PAGE_BYTES / MB,
            "hash table, MB": one.waiting(pages) * THESIS_FUDGE * STREAM_BYTES / MB,
            "queue, MB": one.waiting(pages) * POINTER_BYTES / MB,
            "k·l": round(found.chunks) * found.partitions,
            "w, rows": found.w,
        }[series]
    )


def _loop(ground: Ground, x: float, series: str) -> Measured:
    one, pages = setting(x), _best(x)
    if series == "model":
        return Measured(reduced_mesh(one, pages, CACHED_FILE, PARTITIONS).c_loop_s * 1000)
    played = ground.play_sales(
        "rmeshjoin",
        rows=ground.scaled(ROWS),
        held=Held(waiting=one.waiting(pages) * ground.share),
        skew=0.0,
    )
    per_page = CACHED_FILE.seconds(played.did, played.probes) / played.did.pages_read
    seconds = (per_page * pages + CACHED_FILE.disk.seek_s) / PARTITIONS
    return Measured(seconds * 1000, played.verified, played.facts())


def _by_memory(ground: Ground, x: float, series: str) -> Measured:
    return _play(ground, series, setting(x).waiting(_best(x)), ROWS)


def _by_master(ground: Ground, x: float, series: str) -> Measured:
    return _play(ground, series, setting(100).waiting(_best(100)), x * 1e6)


def _slightly_faster(curves: Curves, moves: Check) -> Verdict:
    ours, other = curves["rmeshjoin"], curves["meshjoin"]
    gain = max(ours[x] / other[x] for x in ours) - 1
    return judge(
        [
            moves,
            above(ours, other, "R-MESHJOIN beside MESHJOIN", 0.99),
            holds(gain > 0.002, f"R-MESHJOIN is faster by {gain:.2%} at most"),
        ]
    )


TABLE_2 = {
    "disk buffer, MB": {50.0: 0.31, 100: 0.43, 150: 0.52},
    "hash table, MB": {50.0: 48.47, 100: 97.14, 150: 145.83},
    "queue, MB": {50.0: 1.21, 100: 2.42, 150: 3.64},
    "w, rows": {50.0: 25.0, 100: 68, 150: 125},
}
TABLE_3 = {
    "c_loop, ms": {50.0: 0.642749, 100: 0.898049, 150: 1.144993},
    "service rate, 1000 rows/s": {50.0: 38.895, 100: 75.720, 150: 109.171},
}
TABLE_4 = {
    "disk buffer, MB": 0.427,
    "hash table, MB": 97.145,
    "queue, MB": 2.423,
    "k·l": 8576.0,
    "w, rows": 75.0,
}

EXPERIMENTS = (
    Experiment(
        id="T4-2",
        paper="thesis-4",
        title="The best buffer of MESHJOIN by the size of R",
        x=MASTER,
        values=MASTERS,
        series=("meshjoin",),
        y=Axis("disk buffer", "MB"),
        clock="equations",
        fixed={"M": "100 MB"},
        claim="the best buffer changes with the size of R",
        cell=_best_by_master,
        rule=lambda c: judge([rises(c["meshjoin"], "the best buffer", by=1.1)]),
        as_claimed=lambda x, series: 0.5 + x / 8,
        remark="In MESHJOIN's own equation only the stream buffer makes a difference, which is tiny"
        " but for small R (contradiction 9).",
    ),
    Experiment(
        id="T4-5",
        paper="thesis-4",
        title="R-MESHJOIN by the size of the hash table",
        x=Axis("hash table", "MB"),
        values=(20, 40, 60, 80, 100),
        series=("rmeshjoin",),
        y=RATE,
        clock="modelled",
        fixed={"n_R": "3.5 M"},
        claim="the rate rises with the hash table",
        cell=_by_hash,
        rule=lambda c: judge([rises(c["rmeshjoin"], "the rate", by=2)]),
        as_claimed=lambda x, series: x,
    ),
    Experiment(
        id="T4-6",
        paper="thesis-4",
        title="R-MESHJOIN by the size of the buffer beside a fixed hash table",
        x=BUFFER,
        values=BUFFERS,
        series=("rmeshjoin",),
        y=RATE,
        clock="equations",
        fixed={"hash table": "50 MB", "n_R": "3.5 M"},
        claim="the rate rises up to a size and then saturates",
        cell=_by_buffer,
        rule=lambda c: judge([saturates(c["rmeshjoin"], "the rate", rise=1.03)]),
        as_claimed=lambda x, series: x / (x + 0.01),
    ),
    Experiment(
        id="T4-7",
        paper="thesis-4",
        title="R-MESHJOIN by the size of the buffer within a fixed memory",
        x=BUFFER,
        values=BUFFERS,
        series=("rmeshjoin",),
        y=RATE,
        clock="equations",
        fixed={"M": "50 MB", "n_R": "3.5 M"},
        claim="the rate rises to a maximum and then falls",
        cell=_in_memory,
        rule=lambda c: judge([peaks(c["rmeshjoin"], "the rate")]),
        as_claimed=lambda x, series: 1 / (x + 0.1 / x),
    ),
    Experiment(
        id="T4-T2",
        paper="thesis-4",
        title="Memory of R-MESHJOIN (Table 4.2)",
        x=MEMORY,
        values=(50, 100, 150),
        series=tuple(TABLE_2),
        y=Axis("MB, or rows", log=True),
        clock="equations",
        fixed={"n_R": "3.5 M", "l": "10"},
        claim="best buffers of 0.31, 0.43, 0.52 MB, and 25, 68, 125 rows per iteration",
        cell=_table_2,
        rule=lambda c: judge(
            [rises(c[series], series) for series in TABLE_2],
            [near(c[series], marks, series, 0.06) for series, marks in TABLE_2.items()],
        ),
        as_claimed=lambda x, series: TABLE_2[series][x],
        marks=TABLE_2,
        remark="The tables do not give n_R and l; both fit all rows.",
    ),
    Experiment(
        id="T4-T3",
        paper="thesis-4",
        title="Cost and rate of R-MESHJOIN (Table 4.3)",
        x=MEMORY,
        values=(50, 100, 150),
        series=tuple(TABLE_3),
        y=Axis("ms, or 1000 rows/s", log=True),
        clock="equations",
        fixed={"n_R": "3.5 M", "l": "10"},
        claim="c_loop of 0.643, 0.898, 1.145 ms; 38,895 rows/s at 50 MB",
        cell=_table_3,
        rule=lambda c: judge(
            [rises(c[series], series) for series in TABLE_3],
            [near(c[series], marks, series, 0.06) for series, marks in TABLE_3.items()],
        ),
        as_claimed=lambda x, series: TABLE_3[series][x],
        marks=TABLE_3,
        remark="The thesis divides w by c_loop only for 50 MB; the other two marks are that"
        " division.",
    ),
    Experiment(
        id="T4-8a",
        paper="thesis-4",
        title="R-MESHJOIN's cost by its model and as counted",
        x=MEMORY,
        values=(50, 100, 150, 200, 250),
        series=("model", "measured"),
        y=Axis("c_loop", "ms"),
        clock="modelled",
        fixed={"n_R": "3.5 M", "l": "10"},
        claim="the calculated cost closely resembles the measured one",
        cell=_loop,
        rule=lambda c: judge(
            [
                rises(c["measured"], "the cost", by=1.2),
                close(c["measured"], c["model"], "model and measurement", 0.15),
            ],
            [close(c["measured"], c["model"], "model and measurement", 0.05)],
        ),
        as_claimed=lambda x, series: x,
    ),
    Experiment(
        id="T4-8b",
        paper="thesis-4",
        title="Best buffers of MESHJOIN and R-MESHJOIN by memory",
        x=MEMORY,
        values=(50, 100, 150, 200, 250),
        series=("meshjoin", "rmeshjoin"),
        y=Axis("disk buffer", "MB"),
        clock="equations",
        fixed={"n_R": "3.5 M"},
        claim="R-MESHJOIN's best buffer is smaller, and the more so the more memory there is",
        cell=_best_of,
        rule=lambda c: judge(
            [
                rises(c["rmeshjoin"], "R-MESHJOIN's", by=1.5),
                above(c["meshjoin"], c["rmeshjoin"], "MESHJOIN's beside it", 1.02),
            ]
        ),
        as_claimed=lambda x, series: x if series == "rmeshjoin" else 1.1 * x + x * x / 1000,
        remark="By their equations both buffers are the same but for the stream buffer"
        " (contradiction 9).",
    ),
    Experiment(
        id="T4-8c",
        paper="thesis-4",
        title="R-MESHJOIN and MESHJOIN by memory",
        x=MEMORY,
        values=(50, 100, 150, 200, 250),
        series=("rmeshjoin", "meshjoin"),
        y=RATE,
        clock="modelled",
        fixed={"n_R": "3.5 M"},
        claim="R-MESHJOIN is slightly faster, visible at large memories",
        cell=_by_memory,
        rule=lambda c: _slightly_faster(c, rises(c["rmeshjoin"], "the rate", by=1.5)),
        as_claimed=lambda x, series: x * (1.02 if series == "rmeshjoin" else 1),
        remark="The number of partitions cancels in Eq. 4.5, so that by the thesis's own equations"
        " both rates are the same.",
    ),
    Experiment(
        id="T4-8d",
        paper="thesis-4",
        title="R-MESHJOIN and MESHJOIN by the size of R",
        x=MASTER,
        values=MASTERS,
        series=("rmeshjoin", "meshjoin"),
        y=RATE,
        clock="modelled",
        fixed={"M": "100 MB"},
        claim="R-MESHJOIN is slightly faster, visible for small R",
        cell=_by_master,
        rule=lambda c: _slightly_faster(c, falls(c["rmeshjoin"], "the rate", by=1.5)),
        as_claimed=lambda x, series: 1 / x * (1.02 if series == "rmeshjoin" else 1),
        cost=4,
    ),
    Experiment(
        id="T4-T4",
        paper="thesis-4",
        title="R-MESHJOIN by the size of R (Table 4.4, Fig. 4.9)",
        x=MASTER,
        values=MASTERS,
        series=tuple(TABLE_4),
        y=Axis("MB, or a count", log=True),
        clock="equations",
        fixed={"M": "100 MB"},
        claim="buffer, hash table, queue, k·l and w are the same for all sizes of R",
        cell=_table_4,
        rule=lambda c: judge(
            [flat(c[series], series, 0.05) for series in TABLE_4],
            [
                near(c[series], dict.fromkeys(c[series], mark), series, 0.05)
                for series, mark in TABLE_4.items()
            ],
        ),
        as_claimed=lambda x, series: TABLE_4[series],
        marks={series: dict.fromkeys(MASTERS, mark) for series, mark in TABLE_4.items()},
    ),
)
