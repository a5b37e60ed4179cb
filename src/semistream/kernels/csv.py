"""Kernels of the CSV reader: finding fields, strict integers, copying text."""

from __future__ import annotations

from typing import Any

import numpy as np

from semistream.kernels.jit import kernel

SHOWN_BYTES = 1000
"""What is shown of a row that is too long."""

WRONG_COUNT, OPEN_QUOTE, AFTER_QUOTE, TOO_LONG = 1, 2, 3, 4
"""What `tokenise` finds wrong with a row."""

_QUOTE = np.uint8(ord('"'))
_LF = np.uint8(ord("\n"))
_CR = np.uint8(ord("\r"))
_SPACE = np.uint8(ord(" "))
_TAB = np.uint8(ord("\t"))


@kernel
def tokenise(
    text: Any,
    begin: Any,
    end: Any,
    final: Any,
    separator: Any,
    slots: Any,
    max_rows: Any,
    max_bytes: Any,
    state: Any,
    starts: Any,
    ends: Any,
    rows: Any,
    bad: Any,
) -> Any:
    """Find the fields of the whole rows in text[begin:end]; `final` when nothing follows.

    Writes the places of wanted fields to starts and ends (a start of -1 is an empty, unquoted
    field; an end of ~e means that the field ends at e and holds doubled quotes), rows as (begin,
    end, line) and bad rows as (begin, end, line, code, column, fields). Returns where it stopped
    and both counts. state is (line, 1 while the rest of an overlong line is being skipped).
    """
    n_columns = len(slots)
    n_rows = 0
    n_bad = 0
    p = begin
    while p < end and n_rows < max_rows and n_bad < len(bad):
        if state[1] == 1:
            while p < end and text[p] != _LF:
                p += 1
            if p < end:
                p += 1
                state[0] += 1
                state[1] = 0
            continue
        if text[p] == _LF:
            p += 1
            state[0] += 1
            continue
        if text[p] == _CR:
            if p + 1 == end and not final:
                break
            if p + 1 == end or text[p + 1] == _LF:
                p += 1
                continue

        row_begin = p
        lines = 0
        column = 0
        code = 0
        whole = False
        while True:
            field_begin = p
            doubled = False
            if p < end and text[p] == _QUOTE:
                closed = False
                p += 1
                while p < end:
                    byte = text[p]
                    if byte == _QUOTE:
                        if p + 1 < end and text[p + 1] == _QUOTE:
                            doubled = True
                            p += 2
                            continue
                        closed = p + 1 < end or final
                        break
                    if byte == _LF:
                        lines += 1
                    p += 1
                if not closed:
                    if final:
                        code = OPEN_QUOTE
                    break
                field_begin += 1
                field_end = p
                p += 1
                if p < end and text[p] == _CR:
                    if p + 1 == end and not final:
                        break
                    if p + 1 == end or text[p + 1] == _LF:
                        p += 1
                if p < end and text[p] != separator and text[p] != _LF:
                    code = AFTER_QUOTE
                    break
                place = field_begin
            else:
                while p < end and text[p] != separator and text[p] != _LF:
                    p += 1
                if p == end and not final:
                    break
                field_end = p
                at_end = p == end or text[p] == _LF
                if at_end and field_end > field_begin and text[field_end - 1] == _CR:
                    field_end -= 1
                place = field_begin if field_end > field_begin else -1
            if column < n_columns and slots[column] >= 0:
                starts[slots[column], n_rows] = place
                ends[slots[column], n_rows] = ~field_end if doubled else field_end
            column += 1
            if p == end:
                whole = True
                break
            if text[p] == _LF:
                whole = True
                lines += 1
                p += 1
                break
            p += 1  # the separator

        row_end = p
        while row_end > row_begin and (text[row_end - 1] == _LF or text[row_end - 1] == _CR):
            row_end -= 1
        # The limit holds for rows that happen to lie whole in the buffer, too: what is read must
        # not depend on where blocks end.
        if whole and row_end - row_begin <= max_bytes:
            if column == n_columns:
                rows[n_rows, 0] = row_begin
                rows[n_rows, 1] = row_end
                rows[n_rows, 2] = state[0]
                n_rows += 1
            else:
                bad[n_bad, 0] = row_begin
                bad[n_bad, 1] = row_end
                bad[n_bad, 2] = state[0]
                bad[n_bad, 3] = WRONG_COUNT
                bad[n_bad, 4] = column if column < n_columns else -1
                bad[n_bad, 5] = column
                n_bad += 1
            state[0] += lines
            continue

        # The rest of the row has not been read yet, or its quotes are wrong, or it is too long.
        # Wrong quotes cost one line, because where the row would have ended nobody can know.
        if not whole and code == 0 and end - row_begin <= max_bytes + 2:
            p = row_begin
            break
        if code == 0 or p - row_begin > max_bytes:
            code = OPEN_QUOTE
        line_end = row_begin
        while line_end < end and text[line_end] != _LF:
            line_end += 1
        if line_end == end and not final:
            if end - row_begin <= max_bytes + 2:
                p = row_begin
                break
            state[1] = 1  # its end is still to come
        row_end = line_end
        if row_end > row_begin and text[row_end - 1] == _CR:
            row_end -= 1
        if row_end - row_begin > max_bytes:
            code = TOO_LONG
            row_end = row_begin + SHOWN_BYTES
        bad[n_bad, 0] = row_begin
        bad[n_bad, 1] = row_end
        bad[n_bad, 2] = state[0]
        bad[n_bad, 3] = code
        bad[n_bad, 4] = column if code != TOO_LONG else -1
        bad[n_bad, 5] = column
        n_bad += 1
        p = line_end
        if line_end < end:
            p += 1
            state[0] += 1
    return p, n_rows, n_bad


@kernel
def parse_integers(text: Any, starts: Any, ends: Any, values: Any, valid: Any, misfits: Any) -> Any:
    """Strictly digits with an optional sign and blanks around; returns how many do not fit."""
    n_misfits = 0
    for i in range(len(starts)):
        values[i] = 0
        valid[i] = False
        p = starts[i]
        e = ends[i]
        if p < 0:
            continue
        if e < 0:  # doubled quotes
            misfits[i] = True
            n_misfits += 1
            continue
        while p < e and (text[p] == _SPACE or text[p] == _TAB):
            p += 1
        while p < e and (text[e - 1] == _SPACE or text[e - 1] == _TAB):
            e -= 1
        if p == e:
            continue
        negative = text[p] == 45
        if negative or text[p] == 43:
            p += 1
        fits = p < e
        value = np.int64(0)  # kept negative: the lowest int64 has no positive counterpart
        while p < e:
            digit = np.int64(text[p]) - 48
            if digit < 0 or digit > 9 or value < -922337203685477580:
                fits = False
                break
            value *= 10
            if value < np.int64(-9223372036854775807) - 1 + digit:
                fits = False
                break
            value -= digit
            p += 1
        if not negative:
            if value == np.int64(-9223372036854775807) - 1:
                fits = False
            value = -value
        if fits:
            values[i] = value
            valid[i] = True
        else:
            misfits[i] = True
            n_misfits += 1
    return n_misfits


@kernel
def measure_text(text: Any, starts: Any, ends: Any, trim: Any, offsets: Any, valid: Any) -> Any:
    """Offsets of the fields' text once copied; a null has none. Returns the total length."""
    total = 0
    offsets[0] = 0
    for i in range(len(starts)):
        p = starts[i]
        e = ends[i]
        valid[i] = p >= 0
        if p >= 0:
            if e < 0:
                e = ~e
                while p < e:
                    if text[p] == _QUOTE:
                        p += 1
                    total += 1
                    p += 1
            else:
                if trim:
                    while p < e and (text[p] == _SPACE or text[p] == _TAB):
                        p += 1
                    while p < e and (text[e - 1] == _SPACE or text[e - 1] == _TAB):
                        e -= 1
                    valid[i] = p < e
                total += e - p
        offsets[i + 1] = total
    return total


@kernel
def copy_text(
    text: Any, starts: Any, ends: Any, trim: Any, offsets: Any, data: Any, misfits: Any
) -> Any:
    """Copy the fields to where `measure_text` put them; marks and counts what is not UTF-8."""
    n_misfits = 0
    for i in range(len(starts)):
        p = starts[i]
        if p < 0:
            continue
        to = offsets[i]
        stop = offsets[i + 1]
        if ends[i] >= 0 and trim:
            while p < ends[i] and (text[p] == _SPACE or text[p] == _TAB):
                p += 1
        seen = np.uint8(0)
        while to < stop:
            byte = text[p]
            if ends[i] < 0 and byte == _QUOTE:
                p += 1
            data[to] = byte
            seen |= byte
            to += 1
            p += 1
        if seen < 128:
            continue
        # Well-formed UTF-8 as in table 3-7 of the Unicode Standard.
        p = offsets[i]
        while p < stop:
            lead = data[p]
            more = 0
            low = 0x80
            high = 0xBF
            if lead >= 0x80:
                if 0xC2 <= lead <= 0xDF:
                    more = 1
                elif 0xE0 <= lead <= 0xEF:
                    more = 2
                    if lead == 0xE0:
                        low = 0xA0
                    elif lead == 0xED:
                        high = 0x9F
                elif 0xF0 <= lead <= 0xF4:
                    more = 3
                    if lead == 0xF0:
                        low = 0x90
                    elif lead == 0xF4:
                        high = 0x8F
                else:
                    break
            if p + more >= stop:
                break
            if more > 0 and not low <= data[p + 1] <= high:
                break
            if more > 1 and not 0x80 <= data[p + 2] <= 0xBF:
                break
            if more > 2 and not 0x80 <= data[p + 3] <= 0xBF:
                break
            p += 1 + more
        if p < stop:
            misfits[i] = True
            n_misfits += 1
    return n_misfits
