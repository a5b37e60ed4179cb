"""Every error that semistream raises on purpose.

A message names the thing, what came and what was wanted; the hint says what to do next. Each
class documents when it occurs, so that callers can catch exactly what they can handle.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SemiStreamError(Exception):
    """Base of all errors of this package; `hint` says what to do about it."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        self.message = message.rstrip(".")
        self.hint = hint.rstrip(".")
        super().__init__(str(self))

    def __str__(self) -> str:
        return f"{self.message}. Hint: {self.hint}." if self.hint else f"{self.message}."

    def __reduce__(self) -> tuple[object, ...]:
        # Errors travel from Spark's workers to the driver: keep the hint when pickled.
        return (_rebuild, (type(self), self.message, self.hint))


def _rebuild(kind: type[SemiStreamError], message: str, hint: str) -> SemiStreamError:
    return kind(message, hint=hint)


class UnknownNameError(SemiStreamError):
    """A join, column, option or other name that does not exist; the message lists those that do."""


class OptionError(SemiStreamError):
    """An argument has a value that makes no sense, such as `how="outer"` or a negative size."""


class SchemaError(SemiStreamError):
    """Stream and master do not fit together: a column of an unsupported type, a changed schema."""


class KeyTypeError(SchemaError):
    """The stream's key columns cannot be compared with the master's."""


class BudgetError(SemiStreamError):
    """The memory given is below what the join needs; the message says the minimum."""


class DeadlineError(SemiStreamError):
    """Rows cannot be answered within `max_wait`, by this join and on this disk."""


class SourceError(SemiStreamError):
    """What a master is built from, or a sink's folder, cannot be read."""


class BadRowError(SourceError):
    """A row of a text source does not parse and no rejects file was asked for."""


class ChangeError(SemiStreamError):
    """A change feed cannot be applied: an unknown operation, a null key, numbers out of order."""


class SinkError(SemiStreamError):
    """Results cannot be written where they should go."""


class QueryError(SemiStreamError):
    """A streaming query, or Spark below it, does not start or has failed."""


class StoreError(SemiStreamError):
    """A master store cannot be built or opened."""


class CorruptPageError(StoreError):
    """A page does not carry the checksum that was written with it, or the file is cut short."""


class CallOrderError(SemiStreamError):
    """A method of a join was called when its state does not allow it (see `SemiStreamJoin`)."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UnknownNameError:
    """An error for a name that does not exist, with the known names and the nearest one."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else "use one of the names listed"
    listed = ", ".join(names) if names else "none"
    return UnknownNameError(f"there is no {kind} {name!r}; known: {listed}", hint=hint)
