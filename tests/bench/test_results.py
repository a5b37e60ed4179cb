"""Stored results say of which commit they are."""

from __future__ import annotations

import subprocess
from pathlib import Path

from semistream.bench.results import commit_of


def test_only_changes_of_the_package_make_a_commit_dirty(tmp_path: Path) -> None:
    package = tmp_path / "src" / "package"
    assert commit_of(tmp_path) is None
    package.mkdir(parents=True)
    (package / "code.py").write_text("one = 1\n")
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    for command in (("init", "-q"), ("add", "."), (*identity, "commit", "-qm", "first")):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True)
    clean = commit_of(package)
    assert clean
    assert not clean.endswith("-dirty")
    (tmp_path / "results.json").write_text("{}")
    assert commit_of(package) == clean
    (package / "code.py").write_text("one = 2\n")
    assert commit_of(package) == f"{clean}-dirty"
