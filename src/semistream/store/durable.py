"""Every step by which a version comes into being or goes: a write, a sync, a rename, a removal.

They are few and in one place, so that a test can end the process, or cut the power, at each.
"""

from __future__ import annotations

import os
from pathlib import Path


def make_directory(path: Path) -> None:
    """A new, empty directory."""
    path.mkdir()


def write_at(file: int, data: memoryview, offset: int) -> None:
    """Write all of `data` into an open file."""
    while data:
        done = os.pwrite(file, data, offset)
        data, offset = data[done:], offset + done


def sync(file: int) -> None:
    """Make what was written to an open file survive a crash of the machine."""
    os.fsync(file)


def rename(path: Path, target: Path) -> None:
    """Put a file in the place of another at once."""
    path.rename(target)


def sync_directory(directory: Path) -> None:
    """Make names in a directory survive a crash of the machine."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_file(path: Path, data: bytes) -> None:
    """A new file with this content, synced."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    try:
        write_at(file, memoryview(data), 0)
        sync(file)
    finally:
        os.close(file)


def remove(path: Path) -> None:
    """Remove a file that nobody needs."""
    path.unlink(missing_ok=True)
