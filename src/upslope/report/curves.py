"""Small charts without a dependency: curves as SVG for the report page, sparklines as text for the terminal.

A chart carries no colours of its own, only class names: the page's style sheet paints it, in the light and in the dark.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

BARS = "▁▂▃▄▅▆▇█"
MOST_POINTS = 400
"""Points drawn of a curve. A longer one is drawn as means of equal stretches: no screen shows more, and the file stays small."""

Point = tuple[float, float]


@dataclass(frozen=True)
class Mark:
    """A measurement with an interval, drawn as a dot with a bar."""

    x: float
    y: float
    low: float
    high: float
    label: str


def sparkline(values: Sequence[float | None], width: int = 24) -> str:
    """The values as a row of bars from the lowest to the highest; what is missing or not finite is left out."""
    known = [float(value) for value in values if value is not None and math.isfinite(value)]
    thinned = [y for _, y in thin([(float(i), y) for i, y in enumerate(known)], width)]
    if not thinned:
        return ""
    low, high = min(thinned), max(thinned)
    if high == low:
        return BARS[0] * len(thinned)
    return "".join(BARS[round((value - low) / (high - low) * (len(BARS) - 1))] for value in thinned)


def thin(points: Sequence[Point], most: int = MOST_POINTS) -> list[Point]:
    """At most that many points: means of equal stretches where there are more."""
    if len(points) <= most:
        return list(points)
    edges = [round(i * len(points) / most) for i in range(most + 1)]
    stretches = [points[a:b] for a, b in pairwise(edges) if b > a]
    return [(sum(x for x, _ in part) / len(part), sum(y for _, y in part) / len(part)) for part in stretches]


def smooth(points: Sequence[Point], window: int) -> list[Point]:
    """Each point the mean of the window around it; the window shrinks at both ends so that neither is bent."""
    half, found = window // 2, []
    for i, (x, _) in enumerate(points):
        reach = min(half, i, len(points) - 1 - i)
        part = points[i - reach : i + reach + 1]
        found.append((x, sum(y for _, y in part) / len(part)))
    return found


def ticks(low: float, high: float, about: int = 4) -> list[float]:
    """Round numbers that cover ``low`` to ``high``: multiples of 1, 2 or 5 times a power of ten."""
    span = high - low
    if span <= 0 or not math.isfinite(span):
        return [low]
    raw = span / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * 0.75)
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def number(value: float) -> str:
    """A number for people: as many digits as tell something."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) >= 1e-3:
        return f"{value:.3g}"
    digits, power = f"{value:.2e}".split("e")
    return f"{digits.rstrip('0').rstrip('.')}e{int(power)}"


def chart(
    points: Sequence[Point],
    *,
    label: str,
    marks: Sequence[Mark] = (),
    width: int = 720,
    height: int = 260,
    window: int = 1,
    bounds: tuple[float, float] | None = None,
    breaks: Sequence[tuple[float, str]] = (),
) -> str:
    """A curve over steps as an ``<svg>``; hovering over it shows step and value.

    Args:
        label: what the values are, for readers of the page and for screen readers.
        marks: measurements with intervals, over the curve.
        window: above 1 the curve is drawn faintly and its running mean over this many points boldly.
        bounds: the least range the y axis shows.
        breaks: steps at which something else begins, and what, as lines from top to bottom.
    """
    drawn = thin(points)
    frame = _Frame.around(drawn, marks, width, height, bounds)
    parts = [frame.grid(), *(frame.upright(x, said) for x, said in breaks)]
    if window > 1 and len(drawn) > window:
        parts += [frame.line(drawn, "faint"), frame.line(smooth(drawn, window), "curve")]
    elif len(drawn) > 1:
        parts.append(frame.line(drawn, "curve"))
    parts += [frame.hover(x, y, f"step {number(round(x))}: {label} {number(y)}", alone=len(drawn) == 1) for x, y in drawn]
    parts += [frame.mark(mark) for mark in marks]
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(label)}" preserveAspectRatio="xMidYMid meet">'
        + "".join(parts)
        + "</svg>"
    )


@dataclass(frozen=True)
class _Frame:
    """Where values lie on the picture."""

    left: float
    right: float
    low: float
    high: float
    width: int
    height: int

    MARGIN_LEFT = 48
    MARGIN_BELOW = 24
    MARGIN = 10

    @classmethod
    def around(
        cls, points: Sequence[Point], marks: Sequence[Mark], width: int, height: int, bounds: tuple[float, float] | None
    ) -> _Frame:
        xs = [x for x, _ in points] + [mark.x for mark in marks] or [0.0]
        ys = [y for _, y in points] + [end for mark in marks for end in (mark.low, mark.high)] + list(bounds or ()) or [0.0]
        low, high = min(ys), max(ys)
        room = (high - low) * 0.06 or max(abs(high) * 0.1, 1e-9)
        inside = bounds is not None and bounds == (low, high)  # a share from 0 to 1 needs no room beyond
        return cls(
            left=min(xs),
            right=max(max(xs), min(xs) + 1),
            low=low if inside or low == 0 else low - room,
            high=high if inside else high + room,
            width=width,
            height=height,
        )

    def x(self, value: float) -> float:
        share = (value - self.left) / (self.right - self.left)
        return self.MARGIN_LEFT + share * (self.width - self.MARGIN_LEFT - self.MARGIN)

    def y(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return self.height - self.MARGIN_BELOW - share * (self.height - self.MARGIN_BELOW - self.MARGIN)

    def grid(self) -> str:
        across = self.width - self.MARGIN
        few = self.height < 200
        rows = [
            f'<line class="grid" x1="{self.MARGIN_LEFT}" x2="{across}" y1="{self.y(v):.1f}" y2="{self.y(v):.1f}"/>'
            f'<text class="tick" text-anchor="end" x="{self.MARGIN_LEFT - 6}" y="{self.y(v) + 4:.1f}">{number(v)}</text>'
            for v in ticks(self.low, self.high, 4 if few else 5)
        ]
        columns = [
            f'<text class="tick" text-anchor="middle" x="{self.x(v):.1f}" y="{self.height - 6}">{number(v)}</text>'
            for v in ticks(self.left, self.right, 3 if self.width < 400 else 8)
            if v == round(v)
        ]
        return "".join(rows + columns)

    def line(self, points: Sequence[Point], kind: str) -> str:
        path = " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)
        return f'<polyline class="{kind}" points="{path}"/>'

    def upright(self, value: float, text: str) -> str:
        x, above, below = f"{self.x(value):.1f}", self.MARGIN, self.height - self.MARGIN_BELOW
        return f'<line class="break" x1="{x}" x2="{x}" y1="{above}" y2="{below}"><title>{escape(text)}</title></line>'

    def hover(self, x: float, y: float, text: str, alone: bool = False) -> str:
        # A circle larger than what is seen: the pointer need not hit the curve exactly.
        kind = "dot alone" if alone else "dot"
        return f'<circle class="{kind}" cx="{self.x(x):.1f}" cy="{self.y(y):.1f}" r="4"><title>{escape(text)}</title></circle>'

    def mark(self, mark: Mark) -> str:
        x, title = f"{self.x(mark.x):.1f}", f"<title>{escape(mark.label)}</title>"
        return (
            f'<g class="mark"><line x1="{x}" x2="{x}" y1="{self.y(mark.low):.1f}" y2="{self.y(mark.high):.1f}">{title}</line>'
            f'<circle cx="{x}" cy="{self.y(mark.y):.1f}" r="4.5">{title}</circle></g>'
        )
