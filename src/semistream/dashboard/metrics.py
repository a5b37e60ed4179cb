"""The figures for operators: Prometheus' text format, and structured lines for a log.

Names are Flink's where Flink has the figure, such as `hitCount`, and ours in its manner elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from semistream.dashboard.moment import STATES, Moment
from semistream.dashboard.recording import About

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

PREFIX = "semistream_"


class Metric(NamedTuple):
    """Kind, as Prometheus names it, and a line of help."""

    kind: str
    help: str


TOTALS = {
    "numRecordsIn": Metric("counter", "Stream rows that the join took in."),
    "numRecordsOut": Metric("counter", "Results."),
    "hitCount": Metric("counter", "Stream rows answered from the cache."),
    "missCount": Metric("counter", "Stream rows that needed a page."),
    "loadCount": Metric("counter", "Read requests."),
    "latestLoadTime": Metric("gauge", "Milliseconds the last micro-batch waited for reads."),
    "numCachedRecords": Metric("gauge", "Master rows in the caches."),
    "numCachedBytes": Metric("gauge", "Bytes of the caches."),
    "numProbeSideRecordsBuffered": Metric("gauge", "Stream rows that wait in the join."),
    "numUnmatchedProbeRecords": Metric("counter", "Stream rows without a partner."),
    "avgJoinFanOut": Metric("gauge", "Partners per matched stream row."),
    "numDeadLetters": Metric("counter", "Rows in the dead letters."),
    "numShedRecords": Metric("counter", "Rows dropped under overload."),
    "numMicroBatches": Metric("counter", "Micro-batches."),
    "pagesRead": Metric("counter", "Pages read from the master."),
    "bytesRead": Metric("counter", "Bytes read from the master."),
    "busyTime": Metric("counter", "Milliseconds that the operators computed."),
    "loadTime": Metric("counter", "Milliseconds that the operators waited for reads."),
    "budgetUsedBytes": Metric("gauge", "Memory in use by the budget's account."),
    "budgetPeakBytes": Metric("gauge", "Most memory that was in use."),
    "budgetLimitBytes": Metric("gauge", "The budget."),
    "masterVersion": Metric("gauge", "Version of the master that the last micro-batch saw."),
}
"""What `Moment.totals` holds."""

NOW = {
    "inputRowsPerSecond": ("input_rows_s", Metric("gauge", "Rows that arrive per second.")),
    "joinedRowsPerSecond": ("joined_rows_s", Metric("gauge", "Stream rows answered per second.")),
    "outputRowsPerSecond": ("output_rows_s", Metric("gauge", "Results per second.")),
    "measuredRowsPerSecond": (
        "measured_rows_s", Metric("gauge", "Stream rows per second of work.")
    ),
    "predictedRowsPerSecond": (
        "predicted_rows_s", Metric("gauge", "The same by the cost model.")
    ),
    "busyShare": ("busy_share", Metric("gauge", "Share of the time that operators compute.")),
    "loadShare": ("io_share", Metric("gauge", "Share of the time that operators wait for reads.")),
    "hitShare": ("hit_share", Metric("gauge", "Share of look-ups answered from the cache.")),
    "pagesPerRow": ("pages_per_row", Metric("gauge", "Page reads per stream row.")),
    "oldestRowSeconds": ("oldest_s", Metric("gauge", "Age of the oldest row that waits.")),
    "numRecordsBehind": ("rows_behind", Metric("gauge", "Rows that wait at the source.")),
}  # fmt: skip
"""Other fields of a moment."""

LABELLED = {
    "componentBytes": Metric("gauge", "Memory in use, by component."),
    "latencySeconds": Metric("gauge", "How long rows waited in the join, by quantile."),
    "microBatchMs": Metric("gauge", "Time of the last micro-batch, by Spark's phases."),
    "state": Metric("gauge", "1 for the state that the pipeline is in."),
}
"""What has labels of its own."""


def prometheus(about: About, moment: Moment) -> str:
    """The figures as Prometheus reads them."""
    lines: list[str] = []
    common = {"pipeline": about.name}
    if moment.algorithm:
        common["algorithm"] = moment.algorithm
    for name, metric, samples in _families(moment):
        if not samples:
            continue
        lines.append(f"# HELP {PREFIX}{name} {metric.help}")
        lines.append(f"# TYPE {PREFIX}{name} {metric.kind}")
        for labels, value in samples:
            lines.append(f"{PREFIX}{name}{_labels({**common, **labels})} {value:.15g}")
    return "\n".join(lines) + "\n"


type_of_samples = list[tuple[dict[str, str], float]]


def _families(moment: Moment) -> Iterator[tuple[str, Metric, type_of_samples]]:
    for name, metric in TOTALS.items():
        yield name, metric, [({}, moment.totals[name])] if name in moment.totals else []
    for name, (attribute, metric) in NOW.items():
        value = getattr(moment, attribute)
        yield name, metric, [] if value is None else [({}, value)]
    quantiles = {
        "0.5": moment.latency_p50_s,
        "0.95": moment.latency_p95_s,
        "0.99": moment.latency_p99_s,
    }
    labelled: dict[str, type_of_samples] = {
        "componentBytes": [({"component": n}, v) for n, v in moment.bytes_by_component.items()],
        "latencySeconds": [({"quantile": n}, v) for n, v in quantiles.items() if v is not None],
        "microBatchMs": [({"phase": n}, v) for n, v in moment.batch_ms.items()],
        "state": [({"state": name}, float(name == moment.state)) for name in STATES],
    }
    for name, samples in labelled.items():
        yield name, LABELLED[name], samples


def _labels(labels: Mapping[str, str]) -> str:
    escaped = (
        '{}="{}"'.format(name, text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n"))
        for name, text in labels.items()
    )
    return "{" + ",".join(escaped) + "}"


def structured_line(about: About, moment: Moment, *, event: str) -> str:
    """A line of a log, as JSON: when, what, the state and the figures by their names."""
    record: dict[str, Any] = {
        "time": datetime.fromtimestamp(moment.at, UTC).isoformat(timespec="milliseconds"),
        "event": event,
        "pipeline": about.name,
        "state": moment.state,
        "reason": moment.reason,
    }
    plain = moment.to_dict()
    record.update(
        {name: plain[attribute] for name, (attribute, _) in NOW.items() if attribute in plain}
    )
    record.update(plain.get("totals", {}))
    return json.dumps(record, ensure_ascii=False)
