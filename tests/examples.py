"""How many examples of a property are tried."""

from __future__ import annotations

import os


def examples(full: int) -> int:
    """All of them in `make soak`, which sets SEMISTREAM_TESTS; else a third, ten at least."""
    return (
        full if os.environ.get("SEMISTREAM_TESTS") == "thorough" else min(max(full // 3, 10), full)
    )
