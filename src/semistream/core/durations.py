"""Lengths of time as people write them."""

from __future__ import annotations

import re

from semistream.core.errors import OptionError

_UNITS_MS = {"ms": 1, "millisecond": 1, "s": 1000, "sec": 1000, "second": 1000}
_UNITS_MS |= {"m": 60_000, "min": 60_000, "minute": 60_000, "h": 3_600_000, "hour": 3_600_000}
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", re.IGNORECASE)


def parse_milliseconds(duration: str, *, what: str) -> int:
    """Milliseconds of `"10 seconds"`, `"500 ms"` or `"2 min"`; `what` is named in errors."""
    match = _DURATION.fullmatch(duration) if isinstance(duration, str) else None
    unit = None
    if match is not None:
        name = match[2].lower()
        unit = _UNITS_MS.get(name) or _UNITS_MS.get(name.removesuffix("s"))
    if match is None or unit is None:
        raise OptionError(
            f"{what}={duration!r} is not a duration", hint='write "10 seconds" or "500 ms"'
        )
    return int(float(match[1]) * unit)
