#!/usr/bin/env python3
"""Draws every picture of the README and the documentation, as SVG.

Usage: scripts/pictures.py            write them to docs/pictures/
       scripts/pictures.py --check    say which of them are not what this script draws
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from xml.sax.saxutils import escape

FOLDER = Path(__file__).parent.parent / "docs" / "pictures"

INK, SOFT, LINE = "#1f2933", "#52606d", "#7b8794"
STREAM, MEMORY, DISK, RESULT = "#d9ecff", "#e3f5e1", "#fdebd0", "#efe3fb"
HOT = "#f7b267"


class Picture:
    """A drawing with a white background, so that it reads on light and dark pages."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.width, self.height, self.title = width, height, title
        self.parts: list[str] = []

    def box(
        self, x: int, y: int, w: int, h: int, fill: str, title: str = "", note: str = ""
    ) -> None:
        """A named part; `note` may have several lines."""
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="8" fill="{fill}" stroke="{LINE}"/>'
        )
        self.text(x + w / 2, y + 22, title, bold=True)
        for number, line in enumerate(note.splitlines()):
            self.text(x + w / 2, y + 42 + 16 * number, line, size=12, color=SOFT)

    def cells(self, x: int, y: int, count: int, size: int, marked: tuple[int, ...] = ()) -> None:
        """A row of small squares: rows or pages, some of them marked."""
        for i in range(count):
            fill = HOT if i in marked else "#ffffff"
            self.parts.append(
                f'<rect x="{x + i * (size + 4)}" y="{y}" width="{size}" height="{size}" rx="2" '
                f'fill="{fill}" stroke="{LINE}"/>'
            )

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: int = 14,
        bold: bool = False,
        color: str = INK,
        anchor: str = "middle",
    ) -> None:
        """A line of text."""
        weight = ' font-weight="600"' if bold else ""
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{color}" '
            f'text-anchor="{anchor}"{weight}>{escape(text)}</text>'
        )

    def arrow(
        self, *points: tuple[int, int], label: str = "", at: tuple[int, int] = (0, 0)
    ) -> None:
        """A line along the points with a head at its end; the label stands at `at`."""
        path = "M" + " L".join(f"{x} {y}" for x, y in points)
        self.parts.append(
            f'<path d="{path}" fill="none" stroke="{INK}" stroke-width="1.6" '
            'marker-end="url(#head)"/>'
        )
        if label:
            self.text(*at, label, size=12, color=SOFT)

    def disk(self, x: int, y: int, w: int, h: int, title: str, note: str) -> None:
        """The master: a cylinder."""
        top = 14
        self.parts.append(
            f'<path d="M{x} {y + top} v{h - 2 * top} a{w / 2:g} {top} 0 0 0 {w} 0 '
            f'v{-(h - 2 * top)}" fill="{DISK}" stroke="{LINE}"/>'
            f'<ellipse cx="{x + w / 2:g}" cy="{y + top}" rx="{w / 2:g}" ry="{top}" '
            f'fill="{DISK}" stroke="{LINE}"/>'
        )
        self.text(x + w / 2, y + top + 36, title, bold=True)
        for number, line in enumerate(note.splitlines()):
            self.text(x + w / 2, y + top + 56 + 16 * number, line, size=12, color=SOFT)

    def svg(self) -> str:
        """The file's content."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width}" height="{self.height}" '
            f'viewBox="0 0 {self.width} {self.height}" role="img" '
            'font-family="Segoe UI, Helvetica, Arial, DejaVu Sans, sans-serif">\n'
            f"<title>{escape(self.title)}</title>\n"
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
            f'markerHeight="7" orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="{INK}"/></marker>'
            "</defs>\n"
            f'<rect width="{self.width}" height="{self.height}" rx="10" fill="#ffffff"/>\n'
        )
        return head + "\n".join(self.parts) + "\n</svg>\n"


def parts() -> Picture:
    """What is joined with what, under what memory."""
    p = Picture(860, 270, "A stream, a join with a fixed memory, and a master on disk")
    p.box(20, 60, 150, 96, STREAM, "stream", "fast, in bursts\nnever ends")
    p.cells(38, 132, 7, 12, (1, 4))
    p.box(250, 30, 330, 156, MEMORY, "join", "memory: 64 MB, never more")
    p.box(266, 88, 92, 82, "#ffffff", "cache", "hot rows of\nthe master")
    p.box(368, 88, 102, 82, "#ffffff", "waiting", "rows that need\na page")
    p.box(480, 88, 84, 82, "#ffffff", "buffers", "reads, index,\nresults")
    p.disk(680, 36, 150, 146, "master", "larger than memory\npages in key order\nchecksums")
    p.arrow((170, 108), (248, 108), label="rows", at=(208, 98))
    p.arrow((582, 92), (678, 92), label="read plan", at=(630, 82))
    p.arrow((678, 132), (582, 132), label="pages", at=(630, 150))
    p.arrow((415, 188), (415, 226))
    p.text(415, 248, "joined rows: exact, as Arrow batches", bold=True)
    return p


def inlj() -> Picture:
    """Each row is looked up by itself."""
    p = Picture(760, 220, "INLJ: index, buffer pool, master")
    p.box(20, 60, 130, 80, STREAM, "stream", "one row at a time\n(in small batches)")
    p.box(220, 60, 120, 80, MEMORY, "index", "first key of\nevery page")
    p.box(400, 60, 140, 80, MEMORY, "buffer pool", "pages, replaced by\nthe clock algorithm")
    p.disk(620, 40, 120, 120, "master", "in key order")
    p.arrow((150, 100), (218, 100), label="key", at=(184, 92))
    p.arrow((340, 100), (398, 100), label="page", at=(369, 92))
    p.arrow((542, 90), (618, 90), label="if absent", at=(580, 80))
    p.arrow((618, 116), (542, 116))
    p.arrow((470, 142), (470, 182))
    p.text(470, 204, "joined rows", bold=True)
    return p


def memoryjoin() -> Picture:
    """The whole master is in memory."""
    p = Picture(760, 220, "The join in memory: index, all pages, master read once")
    p.box(20, 60, 130, 80, STREAM, "stream", "every row is\nanswered at once")
    p.box(220, 60, 120, 80, MEMORY, "index", "first key of\nevery page")
    p.box(400, 60, 140, 80, MEMORY, "all pages", "sorted by key:\nno further table")
    p.disk(620, 40, 120, 120, "master", "in key order")
    p.arrow((150, 100), (218, 100), label="key", at=(184, 92))
    p.arrow((340, 100), (398, 100), label="page", at=(369, 92))
    p.arrow((618, 100), (542, 100), label="once", at=(580, 90))
    p.arrow((470, 142), (470, 182))
    p.text(470, 204, "joined rows", bold=True)
    return p


def meshjoin() -> Picture:
    """Batches in a queue, chunks in a circle."""
    p = Picture(760, 260, "MESHJOIN: a queue of batches meets a circular scan")
    p.box(20, 40, 130, 80, STREAM, "stream", "w rows with\neach chunk")
    p.box(
        210, 40, 290, 80, MEMORY, "hash table H, queue Q", "k batches; the oldest has met all of R"
    )
    p.cells(246, 94, 10, 16, (9,))
    p.box(560, 40, 180, 80, MEMORY, "chunk", "b pages, each record\nprobes H")
    p.disk(575, 150, 150, 96, "master", "k chunks in a circle")
    p.arrow((150, 80), (208, 80))
    p.arrow((558, 80), (502, 80), label="probe", at=(530, 70))
    p.arrow((650, 152), (650, 122))
    p.arrow((430, 122), (430, 178), label="", at=(0, 0))
    p.text(430, 198, "the oldest batch leaves", size=12, color=SOFT)
    p.arrow((290, 122), (290, 178))
    p.text(290, 198, "joined rows", bold=True)
    return p


def ameshjoin() -> Picture:
    """Packets of any size meet reads of any size."""
    p = Picture(760, 270, "AMESHJOIN: packets with a start page, and a tuner")
    p.box(20, 50, 130, 80, STREAM, "stream", "w rows, as many\nas have come")
    p.box(210, 50, 290, 80, MEMORY, "hash table H, queue Q", "packets: rows and their start page")
    for x, count in ((226, 5), (336, 2), (396, 4)):
        p.cells(x, 106, count, 14, (0,))
    p.box(560, 50, 180, 80, MEMORY, "pages", "b of them, each record\nprobes H")
    p.disk(575, 160, 150, 96, "master", "pages in a circle")
    p.box(210, 170, 130, 64, RESULT, "tuner", "rate of the stream")
    p.arrow((150, 90), (208, 90))
    p.arrow((558, 90), (502, 90), label="probe", at=(530, 80))
    p.arrow((650, 162), (650, 132))
    p.arrow((342, 202), (573, 202), label="b for the next loop", at=(458, 194))
    p.arrow((85, 132), (85, 202), (208, 202))
    p.arrow((355, 48), (355, 30))
    p.text(355, 22, "a packet leaves after the page before its start page", size=12, color=SOFT)
    return p


def rmeshjoin() -> Picture:
    """One chunk, several intakes."""
    p = Picture(760, 260, "R-MESHJOIN: one chunk in several logical partitions")
    p.box(20, 40, 130, 80, STREAM, "stream", "w rows with each\nlogical partition")
    p.box(210, 40, 270, 80, MEMORY, "hash table H, queue Q", "k·l batches, constant for any R")
    p.cells(226, 96, 14, 12, (13,))
    p.box(540, 40, 200, 80, MEMORY, "chunk", "l logical partitions\nof b / l pages")
    p.cells(572, 96, 8, 14, (2,))
    p.disk(565, 150, 150, 96, "master", "k chunks in a circle")
    p.arrow((150, 80), (208, 80))
    p.arrow((538, 80), (482, 80), label="probe", at=(510, 70))
    p.arrow((640, 152), (640, 122), label="once per l loops", at=(690, 142))
    p.arrow((430, 122), (430, 178))
    p.text(430, 198, "the oldest batch leaves", size=12, color=SOFT)
    p.arrow((290, 122), (290, 178))
    p.text(290, 198, "joined rows", bold=True)
    return p


def cmeshjoin() -> Picture:
    """A cache in front of MESHJOIN."""
    p = Picture(780, 280, "CMESHJOIN: a cache of hot rows in front of MESHJOIN")
    p.box(20, 90, 120, 80, STREAM, "stream")
    p.cells(38, 130, 6, 12, (0, 2, 3))
    p.box(210, 20, 200, 76, MEMORY, "cache H_R", "rows asked for more\nthan a threshold")
    p.box(210, 150, 240, 80, MEMORY, "hash table H, queue Q", "k batches")
    p.cells(232, 206, 12, 12, (11,))
    p.box(520, 150, 100, 80, MEMORY, "chunk", "b pages")
    p.disk(660, 140, 110, 100, "master", "in a circle")
    p.arrow((140, 115), (174, 115), (174, 58), (208, 58), label="hits", at=(176, 48))
    p.arrow((140, 145), (174, 145), (174, 190), (208, 190), label="misses", at=(176, 208))
    p.arrow((518, 190), (452, 190), label="probe", at=(485, 182))
    p.arrow((658, 190), (622, 190))
    p.arrow((570, 148), (570, 58), (412, 58), label="m > threshold", at=(520, 50))
    p.arrow((330, 232), (330, 252))
    p.text(330, 270, "joined rows, from both", bold=True)
    return p


def partitionedjoin() -> Picture:
    """A slot for each segment."""
    p = Picture(780, 280, "Partitioned Join: a slot per segment, some segments in memory")
    p.box(20, 90, 120, 80, STREAM, "stream")
    p.cells(38, 130, 6, 12, (0, 2, 3))
    p.box(210, 20, 200, 76, MEMORY, "R-buffer", "segments that match\nmost rows of late")
    p.box(210, 140, 240, 92, MEMORY, "wait buffer", "a slot for each segment")
    for number, count in enumerate((7, 2, 4, 1)):
        p.cells(232 + 52 * number, 196, min(count, 3), 12, (0,) if number == 0 else ())
    p.disk(620, 110, 140, 120, "master", "in segments,\nindex on the key")
    p.arrow((140, 115), (174, 115), (174, 58), (208, 58), label="in memory", at=(166, 48))
    p.arrow((140, 145), (174, 145), (174, 190), (208, 190), label="else", at=(160, 208))
    p.arrow((452, 176), (618, 176), label="slot too large, or buffer full", at=(535, 168))
    p.arrow((690, 112), (690, 58), (412, 58), label="segment", at=(560, 50))
    p.arrow((330, 234), (330, 252))
    p.text(330, 270, "joined rows, from both", bold=True)
    return p


def hybridjoin() -> Picture:
    """The oldest row chooses the page."""
    p = Picture(760, 260, "HYBRIDJOIN: the oldest row chooses the partition")
    p.box(20, 40, 130, 80, STREAM, "stream", "as many rows as\nhave left")
    p.box(210, 40, 250, 80, MEMORY, "hash table H, queue Q", "all waiting rows, oldest first")
    p.cells(226, 94, 11, 14, (0,))
    p.box(
        540, 40, 200, 80, MEMORY, "disk buffer", "one partition serves all\nrows that wait for it"
    )
    p.disk(565, 150, 150, 96, "master", "index on the key")
    p.arrow((150, 80), (208, 80))
    p.arrow((538, 80), (462, 80), label="matches", at=(500, 70))
    p.arrow((640, 152), (640, 122))
    p.arrow((236, 122), (236, 205), (562, 205), label="key of the oldest row", at=(390, 197))
    p.arrow((420, 122), (420, 150))
    p.text(420, 168, "joined rows", bold=True)
    return p


def ssij() -> Picture:
    """Input buffer, cached pages, lists by page, planned reads."""
    p = Picture(860, 300, "SSIJ: cached pages in front, lists by page, a planned read")
    p.box(20, 100, 110, 80, STREAM, "stream", "in batches")
    p.box(180, 100, 120, 80, MEMORY, "IB", "input buffer:\nrows not looked up")
    p.box(360, 30, 190, 76, MEMORY, "CR", "pages with most use")
    p.cells(388, 84, 8, 12, (0, 1, 4))
    p.box(
        360, 160, 190, 90, MEMORY, "SB and II", "waiting rows, a list for\neach wanted page (P_u)"
    )
    p.cells(376, 226, 10, 12, (1, 2, 6, 7))
    p.disk(
        690,
        120,
        150,
        136,
        "master",
        "index on the key;\nscans and single reads\nby the cheapest plan",
    )
    p.arrow((130, 140), (178, 140), label="pending", at=(154, 94))
    p.arrow((300, 125), (330, 125), (330, 68), (358, 68), label="online", at=(330, 58))
    p.arrow((300, 155), (330, 155), (330, 205), (358, 205), label="not cached", at=(318, 222))
    p.arrow((552, 190), (688, 190), label="read plan", at=(620, 182))
    p.arrow((688, 222), (552, 222), label="pages", at=(620, 238))
    p.arrow((620, 180), (620, 68), (552, 68), label="the most wanted stay", at=(640, 60))
    p.arrow((455, 252), (455, 272))
    p.text(455, 290, "joined rows, from both", bold=True)
    return p


def ssbj() -> Picture:
    """Cache and scan, and the way between them."""
    p = Picture(820, 300, "SSBJ: each key in the cache or in the disk phase, where it takes less")
    p.box(20, 100, 120, 80, STREAM, "stream", "w rows with\neach chunk")
    p.box(210, 30, 220, 80, MEMORY, "cache H_R", "all rows of a key, if\nm·v_R < n·v_S")
    p.box(
        210,
        160,
        220,
        86,
        MEMORY,
        "H_S, queue Q",
        "the other rows; the oldest\nbatch has met all of R",
    )
    p.cells(246, 222, 9, 14, (8,))
    p.box(510, 160, 120, 86, MEMORY, "chunk", "each record\nprobes H_S")
    p.disk(680, 150, 120, 106, "master", "in a circle")
    p.arrow((140, 125), (175, 125), (175, 68), (208, 68), label="hits", at=(175, 58))
    p.arrow((140, 155), (175, 155), (175, 200), (208, 200), label="misses", at=(175, 218))
    p.arrow((508, 205), (432, 205), label="probe", at=(470, 197))
    p.arrow((678, 205), (632, 205))
    p.arrow(
        (570, 158), (570, 68), (432, 68), label="count, collect, move: a scan each", at=(560, 60)
    )
    p.arrow((320, 248), (320, 270))
    p.text(320, 290, "joined rows, from both", bold=True)
    return p


def sweepjoin() -> Picture:
    """Pool, sweeping head, cache."""
    p = Picture(820, 290, "SWEEPJOIN: a cache in front, a pool by page, a sweeping head")
    p.box(20, 90, 120, 80, STREAM, "stream", "all that fit")
    p.box(200, 30, 190, 76, MEMORY, "tuple cache", "hot rows: answered at once")
    p.cells(232, 84, 8, 12, (0, 1, 2))
    p.box(200, 150, 190, 76, MEMORY, "pool", "waiting rows by page")
    p.cells(214, 204, 10, 12, (1, 2, 3, 6, 8))
    p.box(460, 150, 130, 76, MEMORY, "read buffer", "several runs\nin flight")
    p.disk(660, 120, 140, 136, "master", "the head sweeps,\nskips pages that\nnobody waits for")
    p.arrow((140, 115), (170, 115), (170, 68), (198, 68), label="hits", at=(170, 58))
    p.arrow((140, 145), (170, 145), (170, 190), (198, 190), label="misses", at=(170, 208))
    p.arrow((392, 176), (458, 176), label="runs", at=(425, 168))
    p.arrow((458, 204), (392, 204), label="pages", at=(425, 220))
    p.arrow((592, 180), (658, 180))
    p.arrow((658, 200), (592, 200))
    p.arrow((525, 148), (525, 68), (394, 68), label="rows worth keeping", at=(525, 60))
    p.arrow((295, 228), (295, 254))
    p.text(295, 274, "joined rows, from both", bold=True)
    return p


def _caching(title: str, cache: str, note: str, master: str) -> Picture:
    """A cache in front of HYBRIDJOIN: what three of its kin look like."""
    p = Picture(820, 290, title)
    p.box(20, 90, 120, 80, STREAM, "stream", "up to h_S rows,\nthen a load")
    p.box(200, 30, 190, 76, MEMORY, "H_R", cache)
    p.cells(232, 84, 8, 12, (0, 1, 2))
    p.box(200, 150, 190, 76, MEMORY, "H_S and queue Q", "misses, oldest first")
    p.cells(214, 204, 10, 12, (0,))
    p.box(460, 150, 130, 76, MEMORY, "disk buffer", "one partition")
    p.disk(660, 120, 140, 136, "master", master)
    p.arrow((140, 115), (170, 115), (170, 68), (198, 68), label="hits", at=(170, 58))
    p.arrow((140, 145), (170, 145), (170, 190), (198, 190), label="misses", at=(170, 208))
    p.arrow((392, 176), (458, 176), label="oldest", at=(425, 168))
    p.arrow((458, 204), (392, 204), label="matches", at=(425, 220))
    p.arrow((592, 180), (658, 180))
    p.arrow((658, 200), (592, 200))
    p.arrow((525, 148), (525, 68), (394, 68), label=note, at=(525, 60))
    p.arrow((295, 228), (295, 254))
    p.text(295, 274, "joined rows, from both", bold=True)
    return p


def optimisedxhybridjoin() -> Picture:
    """The first rows of a sorted master in a hash table."""
    return _caching(
        "Optimised X-HYBRIDJOIN: the most frequent rows answer the stream first",
        "most frequent rows",
        "loaded once",
        "those most asked\nfor come first",
    )


def cachejoin() -> Picture:
    """Rows above a threshold move into the cache."""
    return _caching(
        "CACHEJOIN: rows asked for more than a threshold move into the cache",
        "rows above the threshold",
        "asked for more than the threshold",
        "in any order",
    )


def sscj() -> Picture:
    """The same, and the least frequent row goes."""
    return _caching(
        "SSCJ: a full cache gives up its least frequent row",
        "the least frequent goes",
        "asked for more than the threshold",
        "in any order",
    )


def xhybridjoin() -> Picture:
    """Two parts of the disk buffer."""
    p = Picture(760, 290, "X-HYBRIDJOIN: a disk buffer of two parts")
    p.box(20, 80, 130, 80, STREAM, "stream", "as many rows as\nhave left")
    p.box(210, 80, 250, 80, MEMORY, "hash table H, queue Q", "all waiting rows, oldest first")
    p.cells(226, 134, 11, 14, (0,))
    p.box(540, 20, 200, 70, MEMORY, "non-swappable part", "first pages of R,\nloaded once")
    p.box(540, 110, 200, 70, MEMORY, "swappable part", "partition of the oldest\nrow that is left")
    p.disk(565, 200, 150, 84, "master", "most asked for first")
    p.arrow((150, 120), (208, 120))
    p.arrow((538, 60), (500, 60), (500, 106), (462, 106), label="first", at=(512, 52))
    p.arrow((538, 140), (462, 140), label="then", at=(512, 132))
    p.arrow((640, 202), (640, 182))
    p.arrow((236, 162), (236, 245), (562, 245), label="key of the oldest row", at=(400, 237))
    p.arrow((420, 162), (420, 188))
    p.text(420, 206, "joined rows", bold=True)
    return p


def hybridjoin2() -> Picture:
    """Two rows that choose in turn."""
    p = Picture(760, 260, "A second lookup position: two rows choose in turn")
    p.box(20, 40, 130, 80, STREAM, "stream", "as many rows as\nhave left")
    p.box(210, 40, 250, 80, MEMORY, "hash table H, queue Q", "oldest left, newest right")
    p.cells(226, 94, 11, 14, (0, 7))
    p.box(
        540, 40, 200, 80, MEMORY, "disk buffer", "one partition serves all\nrows that wait for it"
    )
    p.disk(565, 150, 150, 96, "master", "most asked for first")
    p.arrow((150, 80), (208, 80))
    p.arrow((538, 80), (462, 80), label="matches", at=(500, 70))
    p.arrow((640, 152), (640, 122))
    p.arrow((234, 122), (234, 218), (562, 218), label="the oldest row", at=(330, 210))
    p.arrow((360, 122), (360, 184), (562, 184), label="or the one 0.3 from the end", at=(458, 176))
    p.text(300, 246, "joined rows leave H", bold=True)
    return p


PICTURES: dict[str, Callable[[], Picture]] = {
    draw.__name__: draw
    for draw in (
        parts,
        inlj,
        meshjoin,
        ameshjoin,
        rmeshjoin,
        cmeshjoin,
        partitionedjoin,
        hybridjoin,
        hybridjoin2,
        xhybridjoin,
        optimisedxhybridjoin,
        cachejoin,
        sscj,
        ssij,
        ssbj,
        sweepjoin,
        memoryjoin,
    )
}


def main(arguments: list[str]) -> int:
    """Write or check all pictures."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    changed = []
    for name, draw in PICTURES.items():
        file, content = FOLDER / f"{name}.svg", draw().svg()
        if not file.exists() or file.read_text() != content:
            changed.append(file.name)
            if "--check" not in arguments:
                file.write_text(content)
    if changed and "--check" in arguments:
        print(f"not what {Path(__file__).name} draws: {', '.join(changed)}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
