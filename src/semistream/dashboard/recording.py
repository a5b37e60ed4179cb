"""Recorded runs: a file of JSON lines, the first about the pipeline, then one per moment."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from semistream.core.errors import SourceError
from semistream.dashboard.moment import STOPPED, Moment

KIND = "semistream recording"
FORMAT = 1

MOST_LINE_CHARACTERS = 1_000_000
"""A line that is longer is none of ours."""


@dataclass(frozen=True)
class About:
    """What runs: a name for people and what is fixed for the whole run, such as the budget."""

    name: str = "pipeline"
    facts: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """A record for JSON."""
        return {"name": self.name, "facts": dict(self.facts)}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> About:
        """What `to_dict` made."""
        facts = record.get("facts", {})
        if not isinstance(facts, dict):
            raise TypeError("facts is no table")
        named = {str(name): str(value) for name, value in facts.items()}
        return cls(str(record.get("name", "pipeline")), named)


class Recording:
    """A file that a run is written to, line by line: what was written before a crash is there."""

    def __init__(self, path: Path, about: About) -> None:
        self._file: TextIO = path.open("w", encoding="utf-8")
        self._write({"kind": KIND, "format": FORMAT, **about.to_dict()})

    def add(self, moment: Moment) -> None:
        """The next moment."""
        self._write(moment.to_dict())

    def _write(self, record: dict[str, Any]) -> None:
        self._file.write(json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n")
        self._file.flush()

    def __enter__(self) -> Recording:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()


class RecordedRun:
    """A recorded run, read moment by moment, so that it may be longer than memory.

    `problem` says after reading what is wrong with the end of the file, if anything is: what comes
    before is good.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problem = ""
        try:
            with path.open(encoding="utf-8", errors="replace") as file:
                first = file.readline(MOST_LINE_CHARACTERS)
        except OSError as error:
            raise SourceError(
                f"{str(path)!r} cannot be read: {error.strerror}",
                hint="give the path that 'semistream run … --record' wrote to",
            ) from error
        self.about = self._header(first)

    def _header(self, line: str) -> About:
        try:
            record = json.loads(line)
            if record["kind"] != KIND:
                raise ValueError(record["kind"])
            found = record["format"]
            about = About.from_dict(record)
        except (ValueError, KeyError, TypeError) as error:
            raise SourceError(
                f"{str(self.path)!r} is not a recorded run: its first line says nothing of one",
                hint="give the path that 'semistream run … --record' wrote to",
            ) from error
        if found != FORMAT:
            raise SourceError(
                f"{str(self.path)!r} has format {found!r}, and this version reads {FORMAT}",
                hint="use the version that recorded it",
            )
        return about

    def moments(self) -> Iterator[Moment]:
        """The moments in their order, up to the end or the first line that is damaged."""
        self.problem = ""
        number, state = 1, ""
        with self.path.open(encoding="utf-8", errors="replace") as file:
            file.readline(MOST_LINE_CHARACTERS)
            while line := file.readline(MOST_LINE_CHARACTERS):
                number += 1
                try:
                    moment = Moment.from_dict(json.loads(line))
                except (ValueError, TypeError, KeyError):
                    self.problem = f"the recording is cut or damaged in line {number}"
                    return
                state = moment.state
                yield moment
        if state != STOPPED:
            self.problem = "the recording ends while the pipeline runs"
