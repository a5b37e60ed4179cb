"""Exactly once, whenever the driver is killed; see crash.py beside this file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from semistream.testing.postgres import PostgresMissingError, find_postgres

SCRIPT = Path(__file__).with_name("crash.py")


def crash(*arguments: str) -> dict[str, Any]:
    try:
        find_postgres()
    except PostgresMissingError as error:
        pytest.skip(str(error))
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], check=False, capture_output=True, text=True
    )
    assert done.stdout, done.stderr[-4000:]
    report: dict[str, Any] = json.loads(done.stdout)
    print(report)
    return report


@pytest.mark.spark
def test_three_kills() -> None:
    # Each sink and each mode once, side by side, on a source that starts fast; all four pairs, more
    # kills and the source in Python are the slow test's.
    arguments = ["--kills", "3", "--seed", "1", "--source", "files"]
    report = crash(*arguments, "--cases", "postgres-waiting,files-drained")
    assert report["exact"], report
    assert report["waited"], "no row waited: nothing was shown of those that do"


@pytest.mark.spark
@pytest.mark.slow
def test_twenty_kills() -> None:
    report = crash("--kills", "20", "--seed", "2")
    assert report["exact"], report
    assert report["waited"], report
