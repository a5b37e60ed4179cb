"""Thesis ch. 3: the disk buffer of MESHJOIN."""

from __future__ import annotations

from semistream.bench.papers.equations import (
    MB,
    MESHJOIN_FUDGE,
    POINTER_BYTES,
    Setting,
    best_pages,
    mesh_c_loop,
    mesh_rate,
)
from semistream.bench.papers.experiment import Axis, Experiment, Measured
from semistream.bench.papers.ground import Ground, Held
from semistream.bench.papers.machine import PAGE_BYTES, TEXT_FILE
from semistream.bench.papers.rules import (
    Curves,
    Verdict,
    above,
    close,
    falls,
    flat,
    holds,
    judge,
    near,
    rises,
    saturates,
)

ROWS = 3_500_000
DEFAULT_PAGES = 0.93 * MB / PAGE_BYTES
MEMORY = Axis("memory", "MB", log=True)
MEMORIES = (20.0, 40, 80, 160, 320)
RATE = Axis("service rate", "rows/s")
PAGES = Axis("disk buffer", "MB", log=True)
FITTED = "The cost of a request was fitted to one number, the best buffer for 20 MB."


def setting(memory: float) -> Setting:
    """M in MB, with the sizes of Table 3.3."""
    return Setting(memory * MB, ROWS, MESHJOIN_FUDGE, POINTER_BYTES, skew=0.0)


def _table(ground: Ground, x: float, series: str) -> Measured:
    one = setting(20)
    return Measured(one.waiting(x) if series == "rows of the hash table" else one.pages / x)


def _by_buffer(ground: Ground, x: float, series: str) -> Measured:
    return Measured(mesh_rate(setting(80), x * MB / PAGE_BYTES, TEXT_FILE))


def _best(memory: float) -> int:
    return best_pages(setting(memory), TEXT_FILE)


def _gain(ground: Ground, x: float, series: str) -> Measured:
    tuned = mesh_rate(setting(x), _best(x), TEXT_FILE)
    return Measured((tuned / mesh_rate(setting(x), DEFAULT_PAGES, TEXT_FILE) - 1) * 100)


def _gains(curves: Curves) -> Verdict:
    gain = curves["gain"]
    most = max(gain.values())
    return judge(
        [
            rises({x: y + 0.1 for x, y in gain.items()}, "the gain (plus 0.1)"),
            holds(most < 4, f"at most {most:.2f} %"),
        ],
        [near(gain, GAINS, "the gain", 0.25), holds(most < 2, f"below 2 %: {most:.2f} %")],
    )


def _tuned(ground: Ground, x: float, series: str) -> Measured:
    pages = _best(x) if series == "tuned" else DEFAULT_PAGES
    played = ground.play_sales(
        "meshjoin",
        rows=ground.scaled(ROWS),
        held=Held(waiting=setting(x).waiting(pages) * ground.share),
        skew=0.0,
    )
    chunks = played.did.pages_read / pages
    seconds = TEXT_FILE.seconds(played.did, played.probes) + chunks * TEXT_FILE.disk.seek_s
    return Measured(played.rows / seconds, played.verified, played.facts())


def _loop(ground: Ground, x: float, series: str) -> Measured:
    if series == "model":
        return Measured(mesh_c_loop(setting(x), DEFAULT_PAGES, TEXT_FILE) * 1000)
    played = ground.play_sales(
        "meshjoin",
        rows=ground.scaled(ROWS),
        held=Held(waiting=setting(x).waiting(DEFAULT_PAGES) * ground.share),
        skew=0.0,
    )
    per_page = TEXT_FILE.seconds(played.did, played.probes) / played.did.pages_read
    seconds = per_page * DEFAULT_PAGES + TEXT_FILE.disk.seek_s
    return Measured(seconds * 1000, played.verified, played.facts())


def _io(ground: Ground, x: float, series: str) -> Measured:
    pages = x * MB / PAGE_BYTES
    return Measured(TEXT_FILE.disk(pages) / pages * 1000)


TABLE = {
    "rows of the hash table": {50.0: 205_000.0, 100: 201_609, 200: 193_024, 400: 176_384},
    "partitions of the queue": {50.0: 1024.0, 100: 512, 200: 256, 400: 128},
}
GAINS = {40.0: 0.4, 80: 1.17, 160: 1.78}
BEST = {20.0: 0.93, 40: 1.35, 80: 1.91, 160: 2.63}

EXPERIMENTS = (
    Experiment(
        id="T3-2",
        paper="thesis-3",
        title="Hash table and queue of MESHJOIN by the size of the buffer (Table 3.2)",
        x=Axis("disk buffer", "pages"),
        values=(50, 100, 200, 400),
        series=("rows of the hash table", "partitions of the queue"),
        y=Axis("count", log=True),
        clock="equations",
        fixed={"M": "20 MB", "n_R": "3.5 M"},
        claim="205,000 to 176,384 rows in the hash table and 1024 to 128 partitions in the queue",
        cell=_table,
        rule=lambda c: judge(
            [
                falls(c["rows of the hash table"], "the hash table"),
                falls(c["partitions of the queue"], "the queue", by=7),
            ],
            [near(c[series], marks, series, 0.01) for series, marks in TABLE.items()],
        ),
        as_claimed=lambda x, series: TABLE[series][x],
        marks=TABLE,
    ),
    Experiment(
        id="T3-3",
        paper="thesis-3",
        title="MESHJOIN's rate by the size of the buffer",
        x=PAGES,
        values=(0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1, 1.5, 2, 3, 4),
        series=("meshjoin",),
        y=RATE,
        clock="equations",
        fixed={"M": "80 MB", "n_R": "3.5 M"},
        claim="a steep rise to a knee, then flat",
        cell=_by_buffer,
        rule=lambda c: judge([saturates(c["meshjoin"], "the rate", rise=1.5)]),
        as_claimed=lambda x, series: x / (x + 0.05),
        remark=FITTED,
    ),
    Experiment(
        id="T3-4",
        paper="thesis-3",
        title="The best buffer of MESHJOIN by memory",
        x=MEMORY,
        values=MEMORIES,
        series=("best buffer",),
        y=Axis("disk buffer", "MB"),
        clock="equations",
        fixed={"n_R": "3.5 M"},
        claim="0.93, 1.35, 1.91, 2.63 MB at 20, 40, 80, 160 MB",
        cell=lambda ground, x, series: Measured(_best(x) * PAGE_BYTES / MB),
        rule=lambda c: judge(
            [rises(c["best buffer"], "the best buffer", by=2)],
            [near(c["best buffer"], BEST, "the best buffer", 0.05)],
        ),
        as_claimed=lambda x, series: 0.93 * (x / 20) ** 0.5,
        marks={"best buffer": BEST},
        remark=FITTED,
    ),
    Experiment(
        id="T3-5",
        paper="thesis-3",
        title="What tuning the buffer gains over the default of 0.93 MB",
        x=MEMORY,
        values=MEMORIES,
        series=("gain",),
        y=Axis("gain", "%"),
        clock="equations",
        fixed={"n_R": "3.5 M"},
        claim="0.4, 1.17, 1.78 % at 40, 80, 160 MB, always below 2 %",
        cell=_gain,
        rule=_gains,
        as_claimed=lambda x, series: {**GAINS, 20: 0.01, 320: 1.95}[x],
        marks={"gain": GAINS},
        remark=FITTED,
    ),
    Experiment(
        id="T3-6",
        paper="thesis-3",
        title="I/O cost per page by the size of the buffer",
        x=PAGES,
        values=(0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1, 1.5, 2, 3, 4),
        series=("meshjoin",),
        y=Axis("I/O per page", "ms"),
        clock="equations",
        claim="the cost per page falls, then hardly changes",
        cell=_io,
        rule=lambda c: judge(
            [
                falls(c["meshjoin"], "the cost", by=2),
                flat({x: y for x, y in c["meshjoin"].items() if x >= 1}, "from 1 MB on", 0.15),
            ]
        ),
        as_claimed=lambda x, series: 0.1 + 0.01 / x,
        remark=FITTED,
    ),
    Experiment(
        id="T3-7",
        paper="thesis-3",
        title="MESHJOIN with the best and with the default buffer",
        x=MEMORY,
        values=MEMORIES,
        series=("tuned", "default"),
        y=RATE,
        clock="modelled",
        fixed={"n_R": "3.5 M"},
        claim="hardly any difference, at 320 MB neither",
        cell=_tuned,
        rule=lambda c: judge(
            [
                rises(c["tuned"], "the rate", by=2),
                close(c["tuned"], c["default"], "tuned and default", 0.05),
            ],
            [
                above(c["tuned"], c["default"], "tuned beside default", 0.995),
                close(c["tuned"], c["default"], "tuned and default", 0.03),
            ],
        ),
        as_claimed=lambda x, series: x * (1.01 if series == "tuned" else 1),
    ),
    Experiment(
        id="T3-8",
        paper="thesis-3",
        title="MESHJOIN's cost by its model and as counted",
        x=MEMORY,
        values=MEMORIES,
        series=("model", "measured"),
        y=Axis("c_loop", "ms"),
        clock="modelled",
        fixed={"n_R": "3.5 M", "disk buffer": "0.93 MB"},
        claim="the measured cost closely resembles the calculated one, and grows with memory",
        cell=_loop,
        rule=lambda c: judge(
            [
                rises(c["measured"], "the cost", by=1.02),
                close(c["measured"], c["model"], "model and measurement", 0.15),
            ],
            [close(c["measured"], c["model"], "model and measurement", 0.05)],
        ),
        as_claimed=lambda x, series: 40 + x,
    ),
)
