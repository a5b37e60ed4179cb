"""Change feeds: rows with an operation, as databases and lakes hand them out, made one form.

A change has the columns of the master's table and one that says what happened. Of a change that
deletes only the key matters. What capture tools call the same operation is made the same here; rows
that show a row as it was *before* an update are left out, since the row after it follows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from semistream.core.errors import ChangeError, OptionError, SchemaError
from semistream.store.opened import Source
from semistream.store.sources import SourceLike, open_source
from semistream.store.writing import BuildPlan

INSERT, UPDATE, DELETE, BEFORE = range(4)

OPERATIONS = {
    INSERT: ("insert", "i", "c", "create", "r", "read", "+i", "append"),
    UPDATE: ("update", "u", "+u", "upsert", "merge", "update_postimage", "update_after"),
    DELETE: ("delete", "d", "-d", "remove"),
    BEFORE: ("-u", "update_preimage", "update_before"),
}
"""What feeds call operations; upper and lower case are the same."""

_CODES = {name: code for code, names in OPERATIONS.items() for name in names}

BAD = ("raise", "skip")

UNKNOWN = "unknown operation"
NO_KEY = "null in the key"


@dataclass
class ChangeCounts:
    """What a feed had: changes by kind, those applied before, those that cannot be applied."""

    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    before_images: int = 0
    applied_before: int = 0
    rejected: dict[str, int] = field(default_factory=dict)

    def reject(self, reason: str, rows: int) -> None:
        """Count rows that are left out because they are bad."""
        if rows:
            self.rejected[reason] = self.rejected.get(reason, 0) + rows


@dataclass(frozen=True)
class ChangeBatch:
    """Changes in the columns of the master's table, in the order of their time."""

    rows: pa.RecordBatch
    operation: npt.NDArray[np.uint8]


class ChangeReader:
    """Reads a feed for a master; `counts` and `sequence` are final when all was read.

    `op` names the column of operations; where a feed has none (None) all rows are updates. With
    `sequence`, a column of whole numbers that never fall, changes up to `after` were applied before
    and are left out.
    """

    def __init__(
        self,
        source: SourceLike,
        plan: BuildPlan,
        *,
        op: str | None = "op",
        sequence: str | None = None,
        after: int | None = None,
        bad: str = "raise",
    ) -> None:
        if bad not in BAD:
            raise OptionError(f"bad={bad!r} is not known", hint=f"use {' or '.join(BAD)}")
        self.counts = ChangeCounts()
        self.sequence = after
        self._source: Source = open_source(source)
        self._plan = plan
        self._op = op
        self._sequence = sequence
        self._after = after
        self._bad = bad
        self._row = 0
        self._highest: int | None = None
        self._check_columns()

    def batches(self) -> Iterator[ChangeBatch]:
        """All changes that are to be applied."""
        for batch in self._source.batches():
            first, self._row = self._row, self._row + batch.num_rows
            wanted = self._known_operations(batch, first)
            wanted &= self._with_key(batch, first, wanted)
            wanted &= self._new(batch, first)
            operation = self._codes(batch)
            self._count(operation[wanted])
            wanted &= operation != BEFORE
            if wanted.any():
                kept = batch if wanted.all() else batch.filter(pa.array(wanted))
                yield ChangeBatch(self._shaped(kept, operation[wanted]), operation[wanted])

    def _check_columns(self) -> None:
        names = self._source.schema.names
        for column, what in ((self._op, "op"), (self._sequence, "sequence")):
            if column is not None and column not in names:
                raise ChangeError(
                    f"the feed has no column {column!r} ({what}=); it has {', '.join(names)}",
                    hint=f"name the column with {what}="
                    + (", or op=None if all changes are updates" if what == "op" else ""),
                )
        if self._sequence is not None:
            type_ = self._source.schema.field(self._sequence).type
            if not pa.types.is_integer(type_):
                raise ChangeError(
                    f"sequence={self._sequence!r} is a column of {type_}, not of whole numbers",
                    hint="name a column such as a log position, or leave sequence out",
                )
        for key in self._plan.key:
            if key not in names:
                raise ChangeError(
                    f"the feed has no column {key!r}, which is the master's key",
                    hint=f"it has {', '.join(names)}",
                )

    def _codes(self, batch: pa.RecordBatch) -> npt.NDArray[np.uint8]:
        """The operation of each row; BEFORE (ignored) where it is not known."""
        if self._op is None:
            return np.full(batch.num_rows, UPDATE, np.uint8)
        column = batch.column(self._op)
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
            raise ChangeError(
                f"op={self._op!r} is a column of {column.type}, not of text",
                hint="operations are texts such as insert, update, delete",
            )
        names = pa.array(list(_CODES), column.type)
        place = pc.index_in(pc.utf8_lower(pc.utf8_trim_whitespace(column)), names)
        codes = np.array([*_CODES.values(), BEFORE], np.uint8)
        found: npt.NDArray[np.uint8] = codes[pc.fill_null(place, len(_CODES)).to_numpy()]
        return found

    def _known_operations(self, batch: pa.RecordBatch, first: int) -> npt.NDArray[np.bool_]:
        if self._op is None:
            return np.ones(batch.num_rows, bool)
        column = batch.column(self._op)
        codes = self._codes(batch)
        text = pc.utf8_lower(pc.utf8_trim_whitespace(column.cast(pa.string())))
        befores = pa.array(OPERATIONS[BEFORE], pa.string())
        unknown = (codes == BEFORE) & ~pc.is_in(text, befores).to_numpy(zero_copy_only=False)
        if unknown.any() and self._bad == "raise":
            row = int(np.flatnonzero(unknown)[0])
            raise ChangeError(
                f"row {first + row} of the feed has the operation {column[row].as_py()!r}",
                hint=f"known are {', '.join(n for names in OPERATIONS.values() for n in names)}; "
                'bad="skip" leaves such rows out',
            )
        self.counts.reject(UNKNOWN, int(unknown.sum()))
        known: npt.NDArray[np.bool_] = ~unknown
        return known

    def _with_key(
        self, batch: pa.RecordBatch, first: int, among: npt.NDArray[np.bool_]
    ) -> npt.NDArray[np.bool_]:
        null = np.zeros(batch.num_rows, bool)
        for key in self._plan.key:
            if batch.column(key).null_count:
                null |= batch.column(key).is_null().to_numpy(zero_copy_only=False)
        null &= among
        if null.any() and self._bad == "raise":
            raise ChangeError(
                f"row {first + int(np.flatnonzero(null)[0])} of the feed has a null in the key "
                f"({', '.join(self._plan.key)})",
                hint='a change must say which row it is about; bad="skip" leaves such rows out',
            )
        self.counts.reject(NO_KEY, int(null.sum()))
        present: npt.NDArray[np.bool_] = ~null
        return present

    def _new(self, batch: pa.RecordBatch, first: int) -> npt.NDArray[np.bool_]:
        if self._sequence is None or batch.num_rows == 0:
            return np.ones(batch.num_rows, bool)
        column = batch.column(self._sequence)
        if column.null_count:
            raise ChangeError(
                f"the feed has a null in {self._sequence!r} (sequence=), behind row {first}",
                hint="every change needs its number",
            )
        numbers = column.cast(pa.int64()).to_numpy()
        before = numbers[0] if self._highest is None else self._highest
        falls = np.flatnonzero(np.diff(numbers, prepend=before) < 0)
        if len(falls):
            row = int(falls[0])
            raise ChangeError(
                f"row {first + row} of the feed has the number {int(numbers[row])} in "
                f"{self._sequence!r}, after {int(numbers[row - 1] if row else before)}",
                hint="sort the feed by it; changes are applied in the order in which they come",
            )
        self._highest = int(numbers[-1])
        self.sequence = max(
            self._highest, self._after if self._after is not None else self._highest
        )
        if self._after is None:
            return np.ones(batch.num_rows, bool)
        new: npt.NDArray[np.bool_] = numbers > self._after
        self.counts.applied_before += int((~new).sum())
        return new

    def _count(self, operation: npt.NDArray[np.uint8]) -> None:
        kinds = np.bincount(operation, minlength=4).tolist()
        self.counts.inserts += kinds[INSERT]
        self.counts.updates += kinds[UPDATE]
        self.counts.deletes += kinds[DELETE]
        self.counts.before_images += kinds[BEFORE]

    def _shaped(self, batch: pa.RecordBatch, operation: npt.NDArray[np.uint8]) -> pa.RecordBatch:
        """The columns of the master's table, in its types."""
        columns = []
        for column in self._plan.schema:
            if column.name not in batch.schema.names:
                if (operation != DELETE).any():
                    raise ChangeError(
                        f"the feed has no column {column.name!r}, and changes that do not delete",
                        hint="a change has all columns of the master's table",
                    )
                columns.append(pa.nulls(batch.num_rows, column.type))
                continue
            value = batch.column(column.name)
            try:
                columns.append(value if value.type == column.type else value.cast(column.type))
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise SchemaError(
                    f"column {column.name!r} of the feed is {value.type} and does not fit the "
                    f"master's {column.type}: {str(error).splitlines()[0]}",
                    hint="cast it before",
                ) from error
        names = self._plan.schema.names
        return pa.RecordBatch.from_arrays(columns, names=names)
