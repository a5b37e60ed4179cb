"""The memory of a join, in bytes, and how it is divided."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from semistream.core.errors import BudgetError, OptionError

_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*|%)\s*", re.IGNORECASE)

type_of_size = int | float | str


def parse_bytes(size: type_of_size, *, of: int | None = None, what: str = "memory") -> int:
    """Bytes from `67108864`, `"64MB"`, `"64MiB"` or `"5%"` (a share of `of`, the master's size)."""
    if isinstance(size, bool) or not isinstance(size, int | float | str):
        raise OptionError(f"{what} is a {type(size).__name__}, not a size", hint='write "64MB"')
    if isinstance(size, int | float):
        number, unit = float(size), ""
    else:
        match = _SIZE.fullmatch(size)
        if match is None:
            raise OptionError(f"{what}={size!r} is not a size", hint='write "64MB", "5%" or bytes')
        number, unit = float(match[1]), match[2].lower()
    if not math.isfinite(number):
        raise OptionError(f"{what}={size!r} is not a size", hint='write "64MB", "5%" or bytes')
    if unit == "%":
        if of is None:
            raise OptionError(
                f"{what}={size!r} is a share, but there is no master to take it of",
                hint='write an absolute size such as "64MB"',
            )
        result = int(number / 100 * of)
    elif unit in _UNITS:
        result = int(number * _UNITS[unit])
    else:
        raise OptionError(
            f"{what}={size!r} has the unknown unit {unit!r}",
            hint="use B, kB, MB, GB, KiB, MiB, GiB or % of the master",
        )
    if result <= 0:
        raise OptionError(f"{what}={size!r} is not above zero", hint='write "64MB" or "5%"')
    return result


def format_bytes(size: float) -> str:
    """A size for people: `format_bytes(64_000_000)` is `64.0 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size) < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


@dataclass(frozen=True)
class MemoryPlan:
    """How a budget is divided: named shares that sum to `total_bytes`, and why."""

    total_bytes: int
    shares: Mapping[str, int]
    reason: str = ""

    def __post_init__(self) -> None:
        if sum(self.shares.values()) != self.total_bytes:
            raise OptionError(
                f"the shares of the plan sum to {sum(self.shares.values())} bytes, "
                f"not to the budget of {self.total_bytes}",
                hint="give what is left to one of the shares",
            )

    def __getitem__(self, name: str) -> int:
        return self.shares[name]


@dataclass
class MemoryBudget:
    """The single account of a join's memory.

    Every buffer, table and index is charged under a component's name before it is allocated and
    released when it goes. A charge beyond the limit raises: the budget is kept, not observed.
    """

    limit_bytes: int
    owner: str = "join"
    _in_use: dict[str, int] = field(default_factory=dict)
    used_bytes: int = 0
    peak_bytes: int = 0

    @property
    def free_bytes(self) -> int:
        """What can still be charged."""
        return self.limit_bytes - self.used_bytes

    def set(self, component: str, size_bytes: int) -> None:
        """Make `component` hold exactly `size_bytes`."""
        change = size_bytes - self._in_use.get(component, 0)
        if change > self.free_bytes:
            raise BudgetError(
                f"{self.owner}: {component} asks for {format_bytes(change)} more and "
                f"{format_bytes(self.free_bytes)} of {format_bytes(self.limit_bytes)} are left",
                hint="raise memory",
            )
        self._in_use[component] = size_bytes
        self.used_bytes += change
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)

    def in_use(self) -> dict[str, int]:
        """Bytes by component."""
        return dict(self._in_use)

    def __iter__(self) -> Iterator[tuple[str, int]]:
        return iter(self._in_use.items())


@contextmanager
def told_in_all(in_all: Callable[[int], int], note: str) -> Iterator[None]:
    """Within it, errors about the memory of a part tell what is needed in all, with a note.

    `in_all` gives the memory of the whole with which the part has so many bytes.
    """
    try:
        yield
    except BudgetError as error:
        hint = re.sub(
            r'memory="(\d+)"', lambda found: f'memory="{in_all(int(found[1]))}"', error.hint
        )
        raise BudgetError(f"{error.message}, {note}", hint=hint) from error
