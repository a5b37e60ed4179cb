"""Which keys a stream asks for most, from a sample of its rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

SAMPLED_PER_BATCH = 256
"""Rows looked at in a batch, evenly spread; a batch that is shorter is looked at whole."""

MOST_SAMPLED = 8192
"""Rows looked at in all, after which no further batch is."""

MOST_CHARACTERS = 64
"""A longer key is cut."""


class HotKeys:
    """Samples the key columns of batches that pass by; a few microseconds for each."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = list(names)
        self._samples: list[pa.RecordBatch] = []
        self.sampled = 0

    def watched(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same batches."""
        for batch in batches:
            self.see(batch)
            yield batch

    def see(self, batch: pa.RecordBatch) -> None:
        """Look at some rows of a batch."""
        if batch.num_rows == 0 or self.sampled >= MOST_SAMPLED:
            return
        step = max(batch.num_rows // SAMPLED_PER_BATCH, 1)
        # Whatever repeats in the rows with the length of a step must not decide which are seen.
        start = (7 * self.sampled) % step
        sample = batch.select(self._names).take(pa.array(np.arange(start, batch.num_rows, step)))
        self._samples.append(sample)
        self.sampled += sample.num_rows

    def top(self, most: int) -> dict[str, int]:
        """The most frequent keys among the sampled rows, as text, and how often each occurs."""
        if not self._samples:
            return {}
        columns = pa.Table.from_batches(self._samples).columns
        keys = columns[0] if len(columns) == 1 else _joined(columns)
        try:
            counted = pc.value_counts(keys)
        except pa.ArrowNotImplementedError:  # of a type that Arrow cannot count
            counted = pc.value_counts(_texts(keys))
        counts = counted.field("counts").to_numpy()
        best = np.argsort(-counts, kind="stable")[:most]
        values = counted.field("values").take(pa.array(best)).to_pylist()
        found: dict[str, int] = {}
        for value, count in zip(values, counts[best].tolist(), strict=True):
            text = key_text(value)
            found[text] = found.get(text, 0) + count
        return found


def key_text(value: object) -> str:
    """A key as people read it, cut to a readable length."""
    text = "null" if value is None else value.hex() if isinstance(value, bytes) else str(value)
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 1] + "…"


def merged(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Counts of several samples, added."""
    total: dict[str, int] = {}
    for one in counts:
        for key, count in one.items():
            total[key] = total.get(key, 0) + count
    return total


def _texts(keys: pa.ChunkedArray) -> pa.Array:
    return pa.array([key_text(value) for value in keys.to_pylist()], pa.string())


def _joined(columns: Sequence[pa.ChunkedArray]) -> pa.Array:
    """The columns of a composite key as one column of text."""
    parts = [_texts(column) for column in columns]
    return pc.binary_join_element_wise(*parts, pa.scalar(" | "))
