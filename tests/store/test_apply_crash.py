"""A crash at every step of a change: the old version is there, or the new one, and whole."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import semistream as ss
from semistream.store import durable
from semistream.store.apply import apply_changes, compact_master
from semistream.store.inspect import master_rows


class Cut(BaseException):
    """The process, or the machine, ends here."""


class Disk:
    """Stands in for `durable`: ends at step `last`, and knows what a loss of power would undo."""

    def __init__(self, last: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.last = last
        self.steps = 0
        self.kinds: Counter[str] = Counter()
        self._unsynced: dict[str, list[tuple[int, int]]] = {}
        self._names: list[tuple[Path, Callable[[], object]]] = []
        self._real = {name: getattr(durable, name) for name in _STEPS}
        for name in _STEPS:
            monkeypatch.setattr(durable, name, getattr(self, name))

    def _step(self, name: str) -> None:
        self.kinds[name] += 1
        self.steps += 1
        if self.steps == self.last:
            raise Cut(name)

    def make_directory(self, path: Path) -> None:
        self._step("make_directory")
        self._real["make_directory"](path)
        self._names.append((path.parent, lambda: shutil.rmtree(path, ignore_errors=True)))

    def write_at(self, file: int, data: memoryview, offset: int) -> None:
        path = _path_of(file)
        self._unsynced.setdefault(path, []).append((offset, len(data)))
        if self.steps + 1 == self.last:  # torn: half of it arrives
            self._real["write_at"](file, data[: len(data) // 2], offset)
        self._step("write_at")
        self._real["write_at"](file, data, offset)
        self._names.append((Path(path).parent, lambda: None))

    def sync(self, file: int) -> None:
        self._step("sync")
        self._unsynced.pop(_path_of(file), None)

    def rename(self, path: Path, target: Path) -> None:
        self._step("rename")
        old = target.read_bytes() if target.exists() else None
        self._real["rename"](path, target)

        def undo() -> None:
            if target.exists() and old is None:
                target.unlink()
            elif old is not None:
                target.write_bytes(old)

        self._names.append((target.parent, undo))

    def sync_directory(self, directory: Path) -> None:
        self._step("sync_directory")
        self._names = [(where, undo) for where, undo in self._names if where != directory]

    def remove(self, path: Path) -> None:
        self._step("remove")
        self._real["remove"](path)

    def lose_power(self, *, names_too: bool) -> None:
        """What was not synced is rubbish; names that were not may be as before."""
        for path, ranges in self._unsynced.items():
            if not Path(path).exists():
                continue
            with Path(path).open("r+b") as file:
                for offset, size in ranges:
                    file.seek(offset)
                    file.write(b"\xa5" * size)
        if names_too:
            for _, undo in reversed(self._names):
                undo()


_STEPS = ("make_directory", "write_at", "sync", "rename", "sync_directory", "remove")


def _path_of(file: int) -> str:
    return str(Path(f"/proc/self/fd/{file}").readlink())


def content(path: Path) -> Counter[tuple[Any, ...]]:
    with ss.open_master(path) as master:
        assert all(bad is None for _, bad in master.bad_pages())
        return Counter(
            row
            for batch in master_rows(master)
            for row in zip(*batch.to_pydict().values(), strict=True)
        )


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("crash") / "m"
    keys = np.arange(1200)
    table = pa.table({"id": keys, "name": ["x" * int(key % 40) for key in keys]})
    ss.build_master(path, table, "id", shards=2, fill=0.9)
    # A second version, so that the page files hold more than one.
    apply_changes(path, pa.table({"id": [5, 900], "name": ["a", "b"]}), op=None)
    return path


CHANGES = pa.table(
    {
        "id": [1, 2, 3, 500, 501, 5000, 5001],
        "name": ["new", None, "y" * 60, "z", "z", "z", "z"],
        "op": ["update", "delete", "update", "delete", "insert", "insert", "delete"],
    }
)

WRITERS: dict[str, Callable[[Path], object]] = {
    "apply": lambda path: apply_changes(path, CHANGES, keep=0, compaction=False),
    "compact": lambda path: compact_master(path, keep=0),
}


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("after", ["the process ended", "power was lost", "names were lost too"])
def test_every_step(
    writer: str, after: str, original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = WRITERS[writer]
    old = content(original)
    shutil.copytree(original, tmp_path / "whole")
    with monkeypatch.context() as patched:
        disk = Disk(0, patched)
        write(tmp_path / "whole")
    new = content(tmp_path / "whole")
    steps, kinds = disk.steps, disk.kinds
    apply_changes(tmp_path / "whole", CHANGES)
    changed = content(tmp_path / "whole")
    assert kinds["rename"] == 2
    assert min(kinds[name] for name in _STEPS) > 0
    assert (old == new) == (writer == "compact")
    seen = set()
    for step in range(1, steps + 1):
        path = tmp_path / f"{step}"
        shutil.copytree(original, path)
        with monkeypatch.context() as patched:
            disk = Disk(step, patched)
            with pytest.raises(Cut):
                write(path)
            if after != "the process ended":
                disk.lose_power(names_too=after == "names were lost too")
        found = content(path)
        assert found in (old, new), f"step {step}"
        version = ss.open_master(path).manifest.version
        seen.add(version)
        assert (version == 3) == (found == new) or writer == "compact"
        # Whoever comes next finds nothing in the way; changes may come twice.
        apply_changes(path, CHANGES)
        assert content(path) == changed
        shutil.rmtree(path)
    assert seen == {2, 3}
