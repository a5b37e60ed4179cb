"""These tests need PySpark; the session is in `tests/conftest.py`, for those of commands too."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")
