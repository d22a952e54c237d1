#!/usr/bin/env python3
"""Turns what `tmux capture-pane -e` prints into a page that looks like a terminal.

usage: terminal.py CAPTURE PAGE COLUMNS ROWS; prints how many pixels wide and high it is.
"""

import html
import re
import sys

CELL = (9, 20)
EDGE = 14
COLOURS = ["#1d2027", "#e06c75", "#98c379", "#e5c07b", "#61afef", "#c678dd", "#56b6c2", "#d7dae0"]
BRIGHT = ["#6b7280", "#ff7b86", "#b5e08a", "#ffd68a", "#7cc4ff", "#dd91f3", "#6fd3df", "#ffffff"]
INK, PAPER = "#d7dae0", "#16181d"


def styled(state: dict) -> str:
    ink, paper = state.get("ink", INK), state.get("paper", PAPER)
    if state.get("reversed"):
        ink, paper = paper, ink
    style = f"color:{ink};background:{paper}"
    return style + (";font-weight:bold" if state.get("bold") else "")


def apply(state: dict, codes: list) -> None:
    codes = list(codes) or [0]
    while codes:
        code = codes.pop(0)
        if code == 0:
            state.clear()
        elif code == 1:
            state["bold"] = True
        elif code == 7:
            state["reversed"] = True
        elif code == 27:
            state.pop("reversed", None)
        elif code == 22:
            state.pop("bold", None)
        elif 30 <= code <= 37:
            state["ink"] = COLOURS[code - 30]
        elif 90 <= code <= 97:
            state["ink"] = BRIGHT[code - 90]
        elif code in (38, 48) and codes[:1] == [5]:
            number = codes[1]
            del codes[:2]
            palette = COLOURS + BRIGHT
            state["ink" if code == 38 else "paper"] = palette[number] if number < 16 else INK
        elif code == 39:
            state.pop("ink", None)
        elif code == 49:
            state.pop("paper", None)


def page(capture: str, columns: int, rows: int) -> str:
    lines, state = [], {}
    for line in capture.split("\n")[:rows]:
        spans = []
        for part in re.split(r"(\x1b\[[0-9;]*m)", line):
            found = re.fullmatch(r"\x1b\[([0-9;]*)m", part)
            if found:
                apply(state, [int(code or 0) for code in found.group(1).split(";")])
            elif part:
                spans.append(f'<span style="{styled(state)}">{html.escape(part)}</span>')
        lines.append("".join(spans) or " ")
    width, height = columns * CELL[0], rows * CELL[1]
    return (
        f"<!doctype html><meta charset=utf-8><style>body{{margin:0;background:{PAPER}}}"
        f"pre{{margin:{EDGE}px;width:{width}px;height:{height}px;overflow:hidden;color:{INK};"
        f"font:15px/{CELL[1]}px 'DejaVu Sans Mono',monospace}}</style><pre>"
        + "\n".join(lines)
        + "</pre>"
    )


def main() -> None:
    capture, out, columns, rows = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    with open(capture, encoding="utf-8") as file, open(out, "w", encoding="utf-8") as written:
        written.write(page(file.read(), columns, rows))
    print(columns * CELL[0] + 2 * EDGE, rows * CELL[1] + 2 * EDGE)


if __name__ == "__main__":
    main()
