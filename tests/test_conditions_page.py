"""The examples of docs/conditions.md print what the page says."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parent.parent / "docs" / "conditions.md"


def test_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = re.findall(r"```python\n(.*?)```.*?```text\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(found) == 2
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for code, expected in found:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, PAGE.name, "exec"), names)
        assert printed.getvalue() == expected
