"""Stored results: one JSON file per run, with everything needed to repeat it."""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

PACKAGES = ("semistream", "numba", "numpy", "pyarrow", "duckdb")


def environment() -> dict[str, Any]:
    """What a figure depends on besides its parameters: commit, machine, versions, date."""
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "commit": _commit(),
        "cores": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "processor": _processor(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
    }


def store(
    folder: Path, bench: str, parameters: Mapping[str, Any], results: Sequence[Mapping[str, Any]]
) -> Path:
    """Write one run into `folder`, under a path made from its parameters; return that path."""
    parts = [f"{name}={_listed(value)}" for name, value in parameters.items()]
    path = folder.joinpath(bench, *parts, "result.json")
    write(path, bench, parameters, results=[dict(result) for result in results])
    return path


def write(path: Path, bench: str, parameters: Mapping[str, Any], **results: Any) -> None:
    """Write results with their parameters and the machine's description, all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "bench": bench,
        "parameters": dict(parameters),
        "environment": environment(),
        **results,
    }
    beside = path.with_suffix(".json.new")
    beside.write_text(json.dumps(document, indent=1) + "\n")
    beside.rename(path)


def _listed(value: Any) -> str:
    return "+".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@cache
def _commit() -> str | None:
    return commit_of(Path(__file__).parents[1])


def commit_of(package: Path) -> str | None:
    """The commit of the checkout in which a package lies; None outside of one.

    "-dirty" where the package is not as in that commit. Other files do not count: results are
    stored while a run goes on.
    """
    try:
        commit = _git("-C", str(package), "describe", "--always")
        changed = _git("-C", str(package), "status", "--porcelain", "--", ".")
    except (OSError, subprocess.SubprocessError):
        return None
    return commit + "-dirty" if changed else commit


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], capture_output=True, text=True, check=True, timeout=10
    )
    return done.stdout.strip()


def _processor() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or None
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or None
