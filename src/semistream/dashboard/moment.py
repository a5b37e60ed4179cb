"""What a pipeline was doing at one moment: all that the page, the report and the metrics show.

A moment is plain data. Panels are functions of moments and of nothing else, so that a recorded run
looks as it did when it ran.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

STARTING, KEEPING_UP, FALLING_BEHIND = "starting", "keeping up", "falling behind"
OVER_BUDGET, STOPPED = "over budget", "stopped"

STATES = (KEEPING_UP, STARTING, STOPPED, FALLING_BEHIND, OVER_BUDGET)
"""From the least to the most alarming."""


@dataclass(frozen=True)
class Moment:
    """A pipeline at the time `at`, in seconds since 1970.

    Rates and shares are those of the last seconds. None stands for what is not known. `totals`
    counts from the start of the run, under the names of the metrics. `input_rows_s` counts rows
    where they arrive, `joined_rows_s` stream rows that were answered, `output_rows_s` results.
    `measured_rows_s` is the rate of the time that the join worked, which `predicted_rows_s`, of a
    cost model, is compared with. `hot_keys` are the most frequent keys with their shares.
    """

    at: float
    state: str = STARTING
    reason: str = ""
    algorithm: str = ""
    input_rows_s: float | None = None
    joined_rows_s: float | None = None
    output_rows_s: float | None = None
    measured_rows_s: float | None = None
    predicted_rows_s: float | None = None
    bytes_by_component: dict[str, int] = field(default_factory=dict)
    bytes_in_use: int | None = None
    bytes_limit: int | None = None
    busy_share: float | None = None
    io_share: float | None = None
    idle_share: float | None = None
    oldest_s: float | None = None
    latency_p50_s: float | None = None
    latency_p95_s: float | None = None
    latency_p99_s: float | None = None
    hit_share: float | None = None
    hot_keys: list[tuple[str, float]] = field(default_factory=list)
    pages_per_row: float | None = None
    batch: int | None = None
    batch_ms: dict[str, int] = field(default_factory=dict)
    rows_waiting: int | None = None
    rows_behind: int | None = None
    unmatched_rows_s: float | None = None
    dead_rows_s: float | None = None
    shed_rows_s: float | None = None
    totals: dict[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """A record for JSON, without what is not known; six digits are plenty for a picture."""
        return {name: _short(value) for name, value in asdict(self).items() if _known(value)}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Moment:
        """The moment that `to_dict` made. Names that this version does not know are left out.

        Raises TypeError or ValueError for a record that is none.
        """
        values = {name: record[name] for name in _FIELDS if name in record}
        moment = cls(**values)
        for name, value in values.items():
            _check(name, value)
        return replace(
            moment, hot_keys=[(str(key), float(share)) for key, share in moment.hot_keys]
        )

    def merged(self, later: Moment) -> Moment:
        """One moment in the place of two: means of rates and shares, peaks of ages and memory."""
        changed: dict[str, Any] = {}
        for names, of in ((_MEANS, _mean), (_PEAKS, max)):
            for name in names:
                known = [
                    value
                    for value in (getattr(self, name), getattr(later, name))
                    if value is not None
                ]
                changed[name] = of(known) if known else None
        worse = max(self, later, key=lambda one: STATES.index(one.state))
        return replace(later, state=worse.state, reason=worse.reason, **changed)


_MEANS = (
    "input_rows_s", "joined_rows_s", "output_rows_s", "measured_rows_s", "predicted_rows_s",
    "busy_share", "io_share", "idle_share", "latency_p50_s", "hit_share", "pages_per_row",
    "unmatched_rows_s", "dead_rows_s", "shed_rows_s",
)  # fmt: skip
_PEAKS = ("oldest_s", "latency_p95_s", "latency_p99_s", "rows_waiting", "rows_behind")

_FIELDS = tuple(one.name for one in fields(Moment))
_TEXTS = ("state", "reason", "algorithm")
_TABLES = ("bytes_by_component", "batch_ms", "totals")


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _known(value: Any) -> bool:
    return value is not None and value not in ({}, [], "")


def _short(value: Any) -> Any:
    """Numbers with six digits; dictionaries and lists likewise. Infinite ones are not JSON."""
    if isinstance(value, dict):
        return {name: _short(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_short(part) for part in value]
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return round(value, 3) if abs(value) >= 1e6 else float(f"{value:.6g}")
    return value


def _check(name: str, value: Any) -> None:
    """Raise for a value that no moment has: a recording may have been edited or damaged."""
    if name in _TEXTS:
        right = isinstance(value, str) and (name != "state" or value in STATES)
    elif name in _TABLES:
        right = isinstance(value, dict) and all(_is_number(one) for one in value.values())
    elif name == "hot_keys":
        right = isinstance(value, list) and all(
            isinstance(one, list | tuple) and len(one) == 2 and _is_number(one[1]) for one in value
        )
    else:
        right = _is_number(value) or (value is None and name != "at")
    if not right:
        raise ValueError(f"{name} = {value!r}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
