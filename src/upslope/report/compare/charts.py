"""The pictures of a comparison as SVG: many methods in one frame, each with its interval.

As in `upslope.report.curves` a chart carries class names and no colours; the style sheet paints them for the light and the dark.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from upslope.report.compare.measuring import Estimate, Line
from upslope.report.curves import number, ticks
from upslope.report.words import clock

COLOURS = 8
"""Series of further ones repeat the colours with a dashed line."""
LETTER = 8.6
"""About the width of a letter of a label: what the reader's machine has for a font is not known here."""
LONGEST_LABEL = 30


def series(place: int) -> str:
    """The class names of a method's colour, by its place in the comparison."""
    return f"s{place % COLOURS}{' dashed' if place // COLOURS % 2 else ''}"


def shortened(label: str) -> str:
    return label if len(label) <= LONGEST_LABEL else f"{label[: LONGEST_LABEL - 1]}…"


@dataclass(frozen=True)
class Plot:
    """Where values lie on a picture."""

    left: float
    right: float
    low: float
    high: float
    width: int = 720
    height: int = 320
    margin_left: float = 52
    margin_right: float = 14
    margin_above: float = 12
    margin_below: float = 30

    def x(self, value: float) -> float:
        share = (value - self.left) / ((self.right - self.left) or 1.0)
        return self.margin_left + share * (self.width - self.margin_left - self.margin_right)

    def y(self, value: float) -> float:
        share = (value - self.low) / ((self.high - self.low) or 1.0)
        return self.height - self.margin_below - share * (self.height - self.margin_below - self.margin_above)

    def grid(self, x_ticks: Sequence[tuple[float, str]], about: int = 5) -> str:
        across = self.width - self.margin_right
        rows = [
            f'<line class="grid" x1="{self.margin_left:g}" x2="{across:g}" y1="{self.y(v):.1f}" y2="{self.y(v):.1f}"/>'
            f'<text class="tick" text-anchor="end" x="{self.margin_left - 8:g}" y="{self.y(v) + 4:.1f}">{number(v)}</text>'
            for v in ticks(self.low, self.high, about)
        ]
        columns = [
            f'<text class="tick" text-anchor="middle" x="{self.x(v):.1f}" y="{self.height - 9:g}">{escape(said)}</text>'
            for v, said in x_ticks
        ]
        return "".join(rows + columns)

    def band(self, line: Line, kind: str) -> str:
        there = [f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in zip(line.x, line.high, strict=True)]
        back = [f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in zip(line.x, line.low, strict=True)]
        return f'<polygon class="band {kind}" points="{" ".join(there + back[::-1])}"/>'

    def curve(self, line: Line, kind: str) -> str:
        path = " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in zip(line.x, line.middle, strict=True))
        return f'<polyline class="line {kind}" points="{path}"/>'

    def steps(self, line: Line, kind: str) -> str:
        """A curve that falls in steps, as a share of runs does."""
        points = [f"{self.x(line.x[0]):.1f},{self.y(line.middle[0]):.1f}"]
        for before, x, y in zip(line.middle, line.x[1:], line.middle[1:], strict=False):
            points += [f"{self.x(x):.1f},{self.y(before):.1f}", f"{self.x(x):.1f},{self.y(y):.1f}"]
        return f'<polyline class="line {kind}" points="{" ".join(points)}"/>'

    def dots(self, line: Line, kind: str, said: Callable[[float, float, float, float], str]) -> str:
        """What the pointer finds: larger than what is seen."""
        made = []
        for x, middle, low, high in zip(line.x, line.middle, line.low, line.high, strict=True):
            title = escape(f"{line.label}: {said(x, middle, low, high)}")
            made.append(
                f'<circle class="dot {kind}" cx="{self.x(x):.1f}" cy="{self.y(middle):.1f}" r="4"><title>{title}</title></circle>'
            )
        return "".join(made)

    def names(self, lines: Sequence[Line], places: dict[str, int], gap: float = 15) -> str:
        """The name of each line at its end, moved apart where ends are close."""
        ends = sorted((self.y(line.middle[-1]), line) for line in lines) if len(lines) == 1 else _apart(
            [(self.y(line.middle[-1]), line) for line in lines], gap, self.margin_above + 4, self.height - self.margin_below
        )  # fmt: skip
        return "".join(
            f'<text class="name {series(places[line.label])}" x="{self.x(line.x[-1]) + 8:.1f}" y="{y + 4:.1f}">'
            f"{escape(shortened(line.label))}<title>{escape(line.label)}</title></text>"
            for y, line in ends
        )


def _apart(ends: list[tuple[float, Line]], gap: float, top: float, bottom: float) -> list[tuple[float, Line]]:
    ordered = sorted(ends, key=lambda end: end[0])
    placed: list[float] = []
    for y, _ in ordered:
        placed.append(max(y, placed[-1] + gap) if placed else max(y, top))
    over = placed[-1] - bottom
    if over > 0:  # pushed out below: the stack moves up as far as it must
        placed[-1] = bottom
        for place in range(len(placed) - 2, -1, -1):
            placed[place] = min(placed[place], placed[place + 1] - gap)
    return [(y, line) for y, (_, line) in zip(placed, ordered, strict=True)]


def svg(width: int, height: float, label: str, parts: Sequence[str]) -> str:
    head = f'<svg viewBox="0 0 {width} {height:g}" role="img" aria-label="{escape(label)}" preserveAspectRatio="xMidYMid meet">'
    return head + "".join(parts) + "</svg>"


def room(values: Sequence[float], within: tuple[float, float] | None = None) -> tuple[float, float]:
    """The range of an axis: all values with a little room, no further than a share can go."""
    low, high = min(values), max(values)
    more = (high - low) * 0.06 or max(abs(high) * 0.1, 0.02)
    low, high = low - more, high + more
    return (max(low, within[0]), min(high, within[1])) if within else (low, high)


AXIS_TITLE = {"steps": "steps", "samples": "samples", "tokens": "tokens", "seconds": "seconds of sampling and learning"}


def curves(lines: Sequence[Line], places: dict[str, int], *, label: str, axis: str, share: bool, width: int = 1000) -> str:
    """Scores along an axis, with bands."""
    values = [value for line in lines for side in (line.low, line.high) for value in side]
    low, high = room(values, (0.0, 1.0) if share else None)
    longest = max(len(shortened(line.label)) for line in lines)
    plot = Plot(
        min(line.x[0] for line in lines), max(max(line.x[-1] for line in lines), 1e-9), low, high, width, 380,
        margin_right=20 + LETTER * longest, margin_below=48,
    )  # fmt: skip
    write = clock if axis == "seconds" and plot.right > 120 else number
    parts = [plot.grid([(v, write(v)) for v in ticks(plot.left, plot.right, 8)])]
    middle = (plot.margin_left + plot.width - plot.margin_right) / 2
    parts.append(
        f'<text class="tick" text-anchor="middle" x="{middle:.1f}" y="{plot.height - 28 + 24:g}">{AXIS_TITLE[axis]}</text>'
    )
    parts[0] = parts[0].replace(f'y="{plot.height - 9:g}"', f'y="{plot.height - 28:g}"')
    parts += [plot.band(line, series(places[line.label])) for line in lines]
    parts += [plot.curve(line, series(places[line.label])) for line in lines]

    def said(x: float, middle: float, low: float, high: float) -> str:
        return f"{label} {number(middle)}, interval {number(low)} to {number(high)}, at {write(x)} {axis}"

    parts += [plot.dots(line, series(places[line.label]), said) for line in lines]
    parts.append(plot.names(lines, places))
    return svg(width, plot.height, f"{label} against {axis}", parts)


def small(lines: Sequence[Line], places: dict[str, int], *, label: str, share: bool = False) -> str:
    """A metric over steps in little room."""
    values = [value for line in lines for side in (line.middle, line.low, line.high) for value in side]
    low, high = room(values, (0.0, 1.0) if share else None)
    plot = Plot(min(line.x[0] for line in lines), max(line.x[-1] for line in lines), low, high, 340, 160, 46, 8, 8, 22)
    parts = [plot.grid([(v, number(v)) for v in ticks(plot.left, plot.right, 3) if v == round(v)], 3).replace(
        f'y="{plot.height - 9:g}"', f'y="{plot.height - 5:g}"'
    )]  # fmt: skip
    parts += [plot.band(line, series(places[line.label])) for line in lines]
    parts += [plot.curve(line, series(places[line.label])) for line in lines]
    parts += [
        plot.dots(line, series(places[line.label]), lambda x, middle, low, high: f"{number(middle)} at step {number(round(x))}")
        for line in lines
    ]
    return svg(340, 160, label, parts)


def profile(lines: Sequence[Line], places: dict[str, int], *, label: str) -> str:
    """The share of runs above each score."""
    plot = Plot(lines[0].x[0], lines[0].x[-1], 0.0, 1.0, 500, 290)
    parts = [plot.grid([(v, number(v)) for v in ticks(plot.left, plot.right, 5)])]
    parts += [plot.band(line, series(places[line.label])) for line in lines]
    parts += [plot.steps(line, series(places[line.label])) for line in lines]
    parts += [
        plot.dots(line, series(places[line.label]), lambda x, middle, low, high: f"{middle:.0%} of the runs above {number(x)}")
        for line in lines
    ]
    return svg(500, plot.height, label, parts)


def over_k(lines: Sequence[Line], places: dict[str, int]) -> str:
    """pass@k over k, each doubling the same distance apart."""
    marks = sorted({x for line in lines for x in line.x})
    spaced = [Line(line.label, [float(marks.index(x)) for x in line.x], line.middle, line.low, line.high) for line in lines]
    values = [value for line in lines for side in (line.low, line.high) for value in side]
    low, high = room(values, (0.0, 1.0))
    plot = Plot(0, len(marks) - 1, low, high, 500, 290, margin_right=22)
    parts = [plot.grid([(float(place), f"{k:g}") for place, k in enumerate(marks)])]
    parts += [plot.band(line, series(places[line.label])) for line in spaced]
    parts += [plot.curve(line, series(places[line.label])) for line in spaced]
    parts += [
        plot.dots(line, series(places[line.label]),
                  lambda x, middle, low, high: f"pass@{marks[round(x)]:g} {middle:.3f}, interval {low:.3f} to {high:.3f}")
        for line in spaced
    ]  # fmt: skip
    return svg(500, plot.height, "pass@k over k", parts)


@dataclass(frozen=True)
class ChartRow:
    """A line of a forest plot: an estimate, and the single runs behind it."""

    label: str
    place: int
    found: Estimate
    runs: Sequence[tuple[float, str]] = ()
    said: str = ""


def forest(rows: Sequence[ChartRow], *, label: str, middle: float | None = None, bounds: tuple[float, float] | None = None) -> str:
    """Estimates with intervals below each other, the runs as small dots; ``middle`` draws a line to be on one side of."""
    values = [value for row in rows for value in (row.found.value, row.found.low, row.found.high) if value is not None]
    values += [value for row in rows for value, _ in row.runs]
    low, high = bounds or room(values)
    each, width = 44, 1000
    longest = max(len(shortened(row.label)) for row in rows)
    behind = max(len(row.said) for row in rows)
    plot = Plot(low, high, 0, 1, width, each * len(rows) + 40, 22 + LETTER * longest, 24 + LETTER * 0.9 * behind, 6, 30)
    foot = plot.height - 26
    parts = [
        f'<line class="grid" x1="{plot.x(v):.1f}" x2="{plot.x(v):.1f}" y1="6" y2="{foot:g}"/>'
        f'<text class="tick" text-anchor="middle" x="{plot.x(v):.1f}" y="{plot.height - 8:g}">{number(v)}</text>'
        for v in ticks(low, high, 8)
    ]
    if middle is not None:
        parts.append(f'<line class="half" x1="{plot.x(middle):.1f}" x2="{plot.x(middle):.1f}" y1="6" y2="{foot:g}"/>')
    for place, row in enumerate(rows):
        parts.append(_forest_row(plot, row, 6 + each * place + each / 2, width))
    return svg(width, plot.height, label, parts)


def _forest_row(plot: Plot, row: ChartRow, y: float, width: int) -> str:
    kind = series(row.place)
    title = f"<title>{escape(f'{row.label}: {row.said}')}</title>"
    parts = [
        f'<text class="name {kind}" text-anchor="end" x="{plot.margin_left - 14:.1f}" y="{y + 4:.1f}">'
        f"{escape(shortened(row.label))}{title}</text>"
    ]
    parts += [
        f'<circle class="run {kind}" cx="{plot.x(value):.1f}" cy="{y + 11:.1f}" r="3.2"><title>{escape(said)}</title></circle>'
        for value, said in row.runs
    ]
    if row.found.low is not None and row.found.high is not None:
        parts.append(f'<line class="bar {kind}" x1="{plot.x(row.found.low):.1f}" x2="{plot.x(row.found.high):.1f}" '
                     f'y1="{y:.1f}" y2="{y:.1f}">{title}</line>')  # fmt: skip
    parts.append(f'<circle class="point {kind}" cx="{plot.x(row.found.value):.1f}" cy="{y:.1f}" r="6">{title}</circle>')
    parts.append(f'<text class="value" text-anchor="end" x="{width - 6}" y="{y + 4:.1f}">{escape(row.said)}</text>')
    return "".join(parts)
