"""The live-memory sawtooth: how many bytes are alive at each step, drawn with block characters.

Plain text without escape codes, so that it looks the same in a terminal, a log and a file.
"""

from __future__ import annotations

from itertools import pairwise

from fuse.planner import MemoryPlan

#: A cell filled from the bottom by 0 to 8 eighths.
EIGHTHS = " ▁▂▃▄▅▆▇█"

_MIN_WIDTH, _MIN_HEIGHT = 24, 4


def sawtooth(plan: MemoryPlan, width: int = 80, height: int = 12) -> str:
    """A chart of at most ``width`` columns and ``height`` lines (at least 24 by 4), the last two of them text.

    The left margin holds the scale, from 0 to the peak.  Where there are more steps than columns, a column shows the
    most bytes among its steps, so that no peak is lost; where there are fewer, each step takes several columns.
    """
    if plan.peak is None:
        return "no bytes are planned: no node computes a value of known size"
    width, height = max(width, _MIN_WIDTH), max(height, _MIN_HEIGHT)
    top, middle = show_bytes(plan.bound), show_bytes(plan.bound / 2)
    margin = max(len(top), len(middle), len("0 B"))
    columns = resample(plan.live, width - margin - 2)
    rows = height - 2
    marks = {0: top, rows - 1: "0 B"} | ({rows // 2: middle} if rows % 2 and rows > 4 else {})
    lines = []
    for row in range(rows):
        cells = "".join(_cell(live, plan.bound, rows, rows - 1 - row) for live in columns)
        lines.append(f"{marks.get(row, ''):>{margin}} ┤{cells}".rstrip())
    first, last = "step 0", f"{len(plan.live) - 1}"
    lines.append(f"{'':>{margin}}  {first}{last:>{len(columns) - len(first)}}")
    peak = f"peak {top} at step {plan.peak.step}, {plan.peak.node}"
    lines.append(peak if len(peak) <= width else peak[: width - 3] + "...")
    return "\n".join(lines)


def resample(live: tuple[int, ...], width: int) -> list[int]:
    """``live`` as at most ``width`` columns: the maximum of each column's steps, or each step several times."""
    steps = len(live)
    if steps <= width:
        return [value for value in live for _ in range(width // steps)]
    edges = [column * steps // width for column in range(width + 1)]
    return [max(live[a:b]) for a, b in pairwise(edges)]


def show_bytes(size: float) -> str:
    """A size for people, decimal, with three digits: ``4.01 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 99.95 else f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


def _cell(live: int, most: int, rows: int, row: int) -> str:
    """The character of one column in ``row``, counted from the bottom; any byte at all leaves a mark on the lowest."""
    filled = -(-live * rows * 8 // most) - row * 8
    return EIGHTHS[min(8, max(0, filled))]
