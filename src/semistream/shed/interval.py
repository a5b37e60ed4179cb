"""The rows that arrived since a join's last request, of which a policy keeps the best."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.core.errors import SchemaError
from semistream.shed.policy import Numbers, Policy

_I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Kept:
    """The rows that are left of an interval, in the order in which they came, and their weights."""

    rows: pa.RecordBatch
    weights: Numbers


class Interval:
    """Collects rows, never more than `most`; those with the lowest scores are shed.

    What is kept is copied: the memory of a batch that was offered may be used again at once.
    """

    def __init__(self, policy: Policy, schema: pa.Schema) -> None:
        self.policy = policy
        self._schema = schema
        self._parts: list[pa.RecordBatch] = []
        self._scores: Numbers = np.empty(0)
        self._results: Numbers = np.empty(0)
        self._offered = 0
        self._threshold = -np.inf

    def __len__(self) -> int:
        return len(self._scores)

    @property
    def size_bytes(self) -> int:
        """Bytes of the rows that are kept."""
        return sum(int(part.get_total_buffer_size()) for part in self._parts) + 16 * len(self)

    def offer(self, batch: pa.RecordBatch, results: Numbers, most: int) -> list[pa.RecordBatch]:
        """Take rows in; what is shed for that, of these rows and of those kept before."""
        held = len(self)
        scores = np.append(self._scores, self.policy.scores(results))
        results = np.append(self._results, results)
        self._offered += batch.num_rows
        if len(scores) <= most:
            self._scores, self._results = scores, results
            self._parts.append(copied(batch, np.arange(batch.num_rows)))
            return []
        kept = highest(scores, most)
        gone = np.ones(len(scores), bool)
        gone[kept] = False
        self._threshold = max(self._threshold, float(scores[gone].max()))
        self._scores, self._results = scores[kept], results[kept]
        parts = ((self._rows(), gone[:held]), (batch, gone[held:]))
        self._parts = [copied(rows, np.flatnonzero(~own)) for rows, own in parts if not own.all()]
        return [copied(rows, np.flatnonzero(own)) for rows, own in parts if own.any()]

    def close(self) -> Kept:
        """End the interval: what was kept, with the weights that are known now."""
        weights = self.policy.weights(self._results, self._offered, self._threshold)
        kept = Kept(self._rows(), weights)
        self._parts, self._scores, self._results = [], np.empty(0), np.empty(0)
        self._offered, self._threshold = 0, -np.inf
        return kept

    def _rows(self) -> pa.RecordBatch:
        if not self._parts:
            return pa.RecordBatch.from_pylist([], schema=self._schema)
        return self._parts[0] if len(self._parts) == 1 else pa.concat_batches(self._parts)


def copied(batch: pa.RecordBatch, rows: _I64 | npt.NDArray[np.int32]) -> pa.RecordBatch:
    """These rows of a batch, in memory of their own."""
    places = pa.array(rows)
    columns = [_copied(column, places) for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _copied(column: pa.Array, places: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        # What it names would be shared.
        values = _copied(column.dictionary, pa.array(np.arange(len(column.dictionary))))
        return pa.DictionaryArray.from_arrays(
            column.indices.take(places), values, ordered=column.type.ordered
        )
    plain = _PLAIN.get(column.type)
    if plain is not None:
        # Arrow cannot take from views, and they would share what they look at.
        return column.cast(plain).take(places).cast(column.type)
    try:
        return column.take(places)
    except pa.ArrowNotImplementedError as error:
        raise SchemaError(
            f"rows with a column of type {column.type} cannot be shed",
            hint="cast the column, or use overload='block'",
        ) from error


_PLAIN = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}


def highest(scores: Numbers, count: int) -> _I64:
    """The places of the `count` highest scores, in order; of equal ones the first."""
    if count <= 0:
        return np.empty(0, np.int64)
    if count >= len(scores):
        return np.arange(len(scores))
    least = np.partition(scores, len(scores) - count)[len(scores) - count]
    above = np.flatnonzero(scores > least)
    equal = np.flatnonzero(scores == least)[: count - len(above)]
    return np.sort(np.append(above, equal))
