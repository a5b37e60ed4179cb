"""A run as one HTML file that opens without a server."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any

from semistream.dashboard.history import WholeRun
from semistream.dashboard.moment import Moment
from semistream.dashboard.recording import About, RecordedRun
from semistream.dashboard.replay import without_keys

_STYLE = re.compile(r'<link rel="stylesheet" href="([^"]+)">')
_SCRIPT = re.compile(r'<script src="([^"]+)" defer></script>')
_ICON = re.compile(r'\s*<link rel="icon"[^>]*>')
_HEAD = "<head>"
_BODY_END = "</body>"


@cache
def asset(name: str) -> bytes:
    """A file of the page."""
    folder = resources.files("semistream.dashboard") / "web"
    for part in name.split("/"):
        folder = folder / part
    return folder.read_bytes()


def report(about: About, moments: Sequence[Moment], *, note: str = "") -> str:
    """The page with everything in it: style, scripts and the moments of a run.

    It asks for nothing from outside, and its own policy forbids that: only the scripts and styles
    with these hashes may run.
    """
    hashes: dict[str, list[str]] = {"style": [], "script": []}

    def inlined(tag: str, text: str) -> str:
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        hashes[tag].append(f"'sha256-{digest}'")
        return f"<{tag}>{text}</{tag}>"

    page = asset("index.html").decode()
    page = _ICON.sub("", page)
    page = _STYLE.sub(lambda found: inlined("style", asset(found[1]).decode()), page)
    scripts = "\n".join(inlined("script", asset(name).decode()) for name in _SCRIPT.findall(page))
    page = _SCRIPT.sub("", page)
    policy = (
        f"default-src 'none'; base-uri 'none'; form-action 'none'; "
        f"script-src {' '.join(hashes['script'])}; style-src {' '.join(hashes['style'])}"
    )
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    data = embedded(
        {"about": about.to_dict(), "note": note, "moments": [m.to_dict() for m in moments]}
    )
    page = page.replace(_HEAD, f"{_HEAD}\n  {meta}", 1)
    block = f'<script type="application/json" id="recorded">{data}</script>'
    return page.replace(_BODY_END, f"{block}\n{scripts}\n{_BODY_END}", 1)


def embedded(value: Any) -> str:
    """JSON that can stand inside a script element: nothing in it ends the element."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def report_of(run: RecordedRun, *, hide_keys: bool = False) -> str:
    """The report of a recorded run, however long, with what is wrong with its end."""
    whole = WholeRun()
    for moment in run.moments():
        whole.add(without_keys(moment) if hide_keys else moment)
    return report(run.about, whole.moments, note=run.problem)
