#!/usr/bin/env python3
"""Takes the pictures of the dashboard for the documentation: light and dark, of a real run.

Usage: scripts/screenshots.py                    run the demonstration for a minute, take them
       scripts/screenshots.py recorded.jsonl     of a recorded run

Needs Chromium (scripts/setup.sh chromium). Pictures have 256 colours, which plots do not miss, and
so a third of the size.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from semistream.dashboard import Access, DashboardServer, History, RecordedRun
from semistream.dashboard.moment import STOPPED
from semistream.testing.browser import chromium

FOLDER = Path(__file__).parent.parent / "docs" / "pictures"
WIDTH, HEIGHT = 1440, 900
DEMO = "from semistream.cli import main; main()"


def main(arguments: list[str]) -> None:
    """Take the pictures of the run that was named, or of a new one."""
    with tempfile.TemporaryDirectory(prefix="semistream-screenshots-") as made:
        if arguments:
            path = Path(arguments[0])
        else:
            path = Path(made) / "demo.jsonl"
            # Rows that pile up while Spark starts are worked off in view, on a slow machine too.
            demo = ["demo", "--seconds", "60", "--rate", "50000", "--record", str(path)]
            subprocess.run([sys.executable, "-c", DEMO, *demo], check=True)
        run, history = RecordedRun(path), History()
        for moment in run.moments():
            if moment.state != STOPPED:
                history.add(moment)
        server = DashboardServer(run.about, history, Access(port=0))
        try:
            take(server.address)
        finally:
            history.close()
            server.close()


def take(address: str) -> None:
    """Open the page twice."""
    with chromium() as browser:
        for scheme in ("light", "dark"):
            with browser.new_context(
                viewport={"width": WIDTH, "height": HEIGHT},
                color_scheme=scheme,  # type: ignore[arg-type]  # one of Playwright's words
            ) as context:
                page = context.new_page()
                page.goto(address)
                page.wait_for_function(
                    "() => document.querySelectorAll('.panel[data-filled=true]').length === 8"
                )
                page.wait_for_timeout(500)
                file = FOLDER / f"dashboard-{scheme}.png"
                page.screenshot(path=file)
            shrink(file)
            print(f"{file.relative_to(FOLDER.parent.parent)}: {file.stat().st_size // 1000} kB")


def shrink(file: Path) -> None:
    """Fewer colours, if the library for that is there (it comes with matplotlib)."""
    try:
        from PIL import Image
    except ImportError:
        return
    with Image.open(file) as picture:
        small = picture.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    small.save(file, optimize=True)


if __name__ == "__main__":
    main(sys.argv[1:])
