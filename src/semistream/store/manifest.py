"""The manifest of a master: one small JSON file that says what the store is.

A master is a directory:

    MANIFEST.json               this file; what it names exists, what it does not name is rubbish
    v1/shard-0000.pages         pages of the first shard, one after the other
    v1/index                    first key64 of every page of all shards (8 bytes each); in frequency
                                order where each class of each shard begins (16 words a shard and
                                one more) and the class of every key; then, where keys repeat, a
                                byte per page that says whether it continues a key; then, where
                                pages do not lie in their order, where each lies (4 bytes)
    v1/MANIFEST.json            the same for this version alone, also when a later one is current
    v2/touched                  key64 of all keys that differ from the version before, in order
    pins/                       which version a stream's micro-batch saw (`semistream.spark`)
    LOCK                        held by whoever writes a new version

A version that came by changes has an index of its own and shares page files with those before it:
pages that changed are appended to the file of their shard, behind what any version refers to.

It is written last and put in place by a rename, so a store either opens completely or not at all.
It carries a checksum of itself: a changed number in it would otherwise lose rows in silence.
"""

from __future__ import annotations

import base64
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from semistream.core.errors import StoreError
from semistream.kernels.hashing import checksum
from semistream.store import durable

FORMAT = 3
READABLE = (2, 3)
"""Formats that can be read: 2 had no changes."""

MANIFEST = "MANIFEST.json"
PINS = "pins"


@dataclass(frozen=True)
class ShardInfo:
    """One page file: its name inside the master's directory, its pages and rows.

    `stored` counts the places of the file that are taken, by pages of this version or of earlier
    ones, where pages do not lie in their order.
    """

    file: str
    pages: int
    rows: int
    stored: int = 0

    @property
    def places(self) -> int:
        """Pages in the file up to the last that this version may refer to."""
        return max(self.stored, self.pages)


@dataclass(frozen=True)
class Manifest:
    """What a master is; all sizes of the version that it publishes.

    `frequency` is the column by whose classes rows are ordered, empty where they are in the order
    of their keys; `class_parts` belongs to it (see `semistream.store.classes`).

    `is_placed` says that the index tells where pages lie. `touched` counts the keys that differ
    from the version before, -1 where that is not known. `sequence` is the highest number of a
    change that was applied, `feeds` the latest batch of every feed that was.
    """

    version: int
    schema_ipc: str
    key: tuple[str, ...]
    hash_bits: int
    page_bytes: int
    record_bytes: int
    fill: float
    shards: tuple[ShardInfo, ...]
    index_file: str
    index_checksum: str
    rows: int
    keys: int
    longest_run: int
    most_rows_per_page: int
    null_keys: int
    rejected_rows: int
    frequency: str = ""
    class_parts: int = 0
    is_placed: bool = False
    touched: int = -1
    sequence: int | None = None
    feeds: dict[str, int] = field(default_factory=dict)
    format: int = FORMAT

    @property
    def schema(self) -> pa.Schema:
        """The schema of the table that was stored."""
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(self.schema_ipc)))

    @property
    def pages(self) -> int:
        """Pages of all shards."""
        return sum(shard.pages for shard in self.shards)

    @property
    def data_bytes(self) -> int:
        """Bytes of all pages: the size of R, of which a budget can be a share."""
        return self.pages * self.page_bytes

    @property
    def is_unique(self) -> bool:
        """Whether no key64 occurs twice."""
        return self.longest_run <= 1


def schema_to_text(schema: pa.Schema) -> str:
    """A schema as text for the manifest."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def version_directory(version: int) -> str:
    """The name of the directory that holds a version's files."""
    return f"v{version}"


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Publish a version: first in its own directory, then as the current one.

    Each is written beside, synced and renamed.
    """
    _write(directory / version_directory(manifest.version), manifest)
    _write(directory, manifest)


def _write(directory: Path, manifest: Manifest) -> None:
    beside = directory / (MANIFEST + ".new")
    plain = asdict(manifest)
    text = json.dumps({**plain, "checksum": _checksum(plain)}, indent=1)
    durable.write_file(beside, text.encode())
    durable.rename(beside, directory / MANIFEST)
    durable.sync_directory(directory)


def _checksum(plain: dict[str, Any]) -> str:
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return f"{int(checksum(np.frombuffer(text.encode(), np.uint8))):016x}"


def read_manifest(path: str | Path, version: int | None = None) -> Manifest:
    """The manifest of a master, or an error that says what is there instead.

    It is that of the current version, or of the one asked for.
    """
    directory = Path(path)
    file = directory / (version_directory(version) if version is not None else "") / MANIFEST
    try:
        plain = json.loads(file.read_text())
    except (FileNotFoundError, NotADirectoryError):
        if version is not None and (directory / MANIFEST).exists():
            raise StoreError(
                f"{str(path)!r} has no version {version} any more",
                hint="keep the versions that running queries use, or start with the current one",
            ) from None
        if not directory.exists():
            raise StoreError(
                f"there is no master at {str(path)!r}",
                hint="build one with semistream.build_master or `semistream master build`",
            ) from None
        raise StoreError(
            f"{str(path)!r} is not a master: it has no {MANIFEST}",
            hint="give the directory that build_master made; an interrupted build must be repeated",
        ) from None
    except OSError as error:
        raise StoreError(
            f"{str(file)!r} cannot be read: {error.strerror}", hint="check its permissions"
        ) from error
    except ValueError as error:
        raise _damaged(file, str(error)) from error
    if not isinstance(plain, dict):
        raise _damaged(file, "it is not a JSON object")
    if plain.get("format") not in READABLE:
        raise StoreError(
            f"{str(path)!r} is of store format {plain.get('format')}, this release reads {FORMAT}",
            hint="build the master again",
        )
    if plain.pop("checksum", None) != _checksum(plain):
        raise _damaged(file, "its checksum does not fit its content")
    try:
        plain["shards"] = tuple(ShardInfo(**shard) for shard in plain["shards"])
        plain["key"] = tuple(plain["key"])
        return Manifest(**plain)
    except (TypeError, KeyError) as error:
        raise _damaged(file, f"its fields are not those of a manifest ({error})") from error


def _damaged(file: Path, why: str) -> StoreError:
    return StoreError(
        f"{str(file)!r} is damaged: {why}", hint="restore it or build the master again"
    )
