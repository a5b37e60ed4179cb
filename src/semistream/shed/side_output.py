"""Where shed rows go, so that a later run can complete the results."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from semistream.core.errors import OptionError, SinkError

ShedTo = str | Path | Callable[[pa.RecordBatch], object]


class SideOutput:
    """A file of Arrow batches, or a function that is called with each batch.

    The file is in Arrow's stream format: what is in it can be read at any moment with
    `pyarrow.ipc.open_stream`, also after a crash, up to the last whole batch. It is made with the
    first row and must not exist before: it would hold rows that nobody has completed yet.
    """

    def __init__(self, target: ShedTo, schema: pa.Schema) -> None:
        self._call = target if callable(target) else None
        self._path = None if callable(target) else Path(target)
        self._schema = schema
        self._writer: pa.RecordBatchStreamWriter | None = None
        if self._path is not None and self._path.exists():
            raise SinkError(
                f"{str(self._path)!r} for shed rows is there already",
                hint="complete and remove it, or give another name",
            )

    @classmethod
    def of(cls, target: ShedTo | None, schema: pa.Schema, overload: str) -> SideOutput:
        """The side output; rows are never shed without one."""
        if target is None or not (isinstance(target, str | Path) or callable(target)):
            came = "no" if target is None else f"{type(target).__name__} as"
            raise OptionError(
                f"overload={overload!r} sheds rows, and there is {came} side output for them",
                hint='give shed_to="shed.arrow" or a function that takes batches',
            )
        return cls(target, schema)

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows."""
        if self._call is not None:
            self._call(batch)
            return
        try:
            if self._writer is None:
                self._writer = pa.ipc.new_stream(str(self._path), self._schema)
            self._writer.write_batch(batch)
        except OSError as error:
            raise SinkError(
                f"shed rows cannot be written to {str(self._path)!r}: {error}",
                hint="check its directory and its disk",
            ) from error

    def close(self) -> None:
        """End the file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
