"""The pictures of a comparison for a paper, as SVG and PDF, drawn by matplotlib.

They are as wide as a column, and every method has a line style and a marker besides its colour, so that they can be read in grey.
The colours are those of Okabe and Ito, which the colour-blind can tell apart; without their yellow, which is lost on white paper.
The same comparison gives the same bytes.
"""

from __future__ import annotations

import importlib.util
import io
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from upslope.errors import UserError
from upslope.report.compare.charts import AXIS_TITLE, shortened
from upslope.report.compare.measuring import AXES, Comparison, Estimate, Line
from upslope.report.compare.numbers import figure_name
from upslope.runtime.files import write_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMN = 3.3
"""Inches: the column of a paper in two columns."""
PAGE = 6.8
"""Inches: both columns."""
FORMATS = ("svg", "pdf")
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5)), (0, (7, 1, 2, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
MOST_MARKS = 10
"""Markers on a line; more would hide it."""
LOOK: dict[Any, Any] = {
    "font.size": 8, "axes.labelsize": 8, "axes.titlesize": 8, "xtick.labelsize": 7, "ytick.labelsize": 7, "legend.fontsize": 7,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.linewidth": 0.4, "grid.color": "#dddddd",
    "axes.axisbelow": True, "axes.linewidth": 0.6, "lines.linewidth": 1.3, "lines.markersize": 3.5, "legend.frameon": False,
    "legend.handlelength": 2.8, "text.usetex": False, "axes.unicode_minus": True,
    # TrueType in PDF, which publishers ask for; outlines in SVG, which need no font where it is read.
    "pdf.fonttype": 42, "svg.fonttype": "path", "svg.hashsalt": "upslope",
}  # fmt: skip

Picture = tuple[str, "Figure"]


def check_figures() -> None:
    """Refuses figures that nothing here can draw."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UserError("--figures are drawn by matplotlib, which is not here. Install it: pip install 'upslope[figures]'.")


def write_figures(found: Comparison, folder: Path) -> list[Path]:
    """Writes every picture into the folder, in both formats, and returns the files."""
    check_figures()
    import matplotlib

    written = []
    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()  # what a user has set for other figures does not change these
        matplotlib.rcParams.update(LOOK)
        warnings.filterwarnings("ignore", message="Glyph")  # a letter that no font here has is drawn as a box
        for name, figure in _pictures(found):
            for kind in FORMATS:
                written.append(folder / f"{name}.{kind}")
                write_bytes(written[-1], _encoded(figure, kind, found.title))
                figure.set_layout_engine("none")  # laid out once for both
    return written


def _encoded(figure: Figure, kind: str, title: str) -> bytes:
    file = io.BytesIO()
    undated = {"Date": None} if kind == "svg" else {"CreationDate": None}
    figure.savefig(file, format=kind, metadata={"Title": clean(title), "Creator": "upslope", **undated})
    return file.getvalue()


def clean(text: str) -> str:
    """Users' words without what neither XML nor a font can hold."""
    return "".join(each if each.isprintable() else " " for each in text.encode("utf-8", "replace").decode("utf-8"))


def line_look(place: int) -> dict[str, Any]:
    """How a method is drawn, by its place; alike only after 315 methods."""
    return {
        "color": COLOURS[place % len(COLOURS)],
        "linestyle": DASHES[place % len(DASHES)],
        "marker": MARKERS[place % len(MARKERS)],
    }


# -- the pictures ----------------------------------------------------------------------------------------------------------


def _pictures(found: Comparison) -> Iterator[Picture]:
    places = {label: place for place, label in enumerate(found.labels)}
    if len(found.tasks) > 1 and not found.obstacles:
        scored = [(each.label, places[each.label], each.score, ()) for each in found.standings]
        yield "score-all", _forest(scored, "normalised score" if found.normalised else "score")
    for task in found.tasks:
        rows = [
            (each.label, places[each.label], each.tasks[task].score, each.tasks[task].after)
            for each in found.standings if task in each.tasks
        ]  # fmt: skip
        yield figure_name("score", found, task), _forest(rows, f"final {found.score_name[task]}")
        for axis in AXES:
            lines = found.curves[task][axis]
            if lines and lines[0].x:
                yield figure_name("curve", found, task, axis), _chart(lines, places, AXIS_TITLE[axis], found.score_name[task])
    if found.pairs:
        pairs = [
            (f"{pair.ours} over {pair.theirs}", places[pair.ours], Estimate(pair.chance, pair.low, pair.high), ())
            for pair in found.pairs
        ]
        yield "improvement", _forest(pairs, "P: the first is better", middle=0.5)
    if found.profiles:
        score = "score" if len(found.tasks) > 1 else found.score_name[found.tasks[0]]
        axis = f"normalised {score}" if found.normalised else f"final {score}"
        yield "profile", _chart(found.profiles, places, axis, "share of runs above", steps=True)
    for task, lines in found.passes.items():
        yield figure_name("pass-at-k", found, task), _chart(lines, places, "k", "pass@k", doublings=True)
    for task in found.tasks:
        yield from _on_the_way(found, task, places)


def _chart(
    lines: Sequence[Line], places: dict[str, int], x: str, y: str, *, steps: bool = False, doublings: bool = False
) -> Figure:
    figure, (axes,) = _frames(COLUMN, 2.1 + _legend_height([line.label for line in lines], 3), 1, 1)
    _draw(axes, lines, places, steps)
    axes.set_xlabel(clean(x), parse_math=False)
    axes.set_ylabel(clean(y), parse_math=False)
    if doublings:
        marks = sorted({value for line in lines for value in line.x})
        axes.set_xscale("log", base=2)
        axes.set_xticks(marks, [f"{mark:g}" for mark in marks])
        axes.minorticks_off()
    elif not steps:
        _whole_ticks(axes)
    _legend(figure, axes, lines, columns=3)
    return figure


def _whole_ticks(axes: Axes) -> None:
    """Few enough that they do not touch: 20k for 20000."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(_short))


def _short(value: float, _: int | None = None) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'k' else size):g}{letter}"
    return f"{value:g}"


def _draw(axes: Axes, lines: Sequence[Line], places: dict[str, int], steps: bool = False) -> None:
    for line in lines:
        look = line_look(places[line.label])
        axes.fill_between(line.x, line.low, line.high, color=look["color"], alpha=0.15, linewidth=0, step="post" if steps else None)
        every = max(1, -(-len(line.x) // MOST_MARKS))
        start = places[line.label] % every  # beside those of the others, where lines lie on each other
        axes.plot(line.x, line.middle, drawstyle="steps-post" if steps else "default", markevery=(start, every), **look)


def _legend(figure: Figure, axes: Axes, lines: Sequence[Line], columns: int) -> None:
    """Above the frame, where it hides no line. Words are set afterwards: matplotlib would read ``$`` and ``_`` in them."""
    legend = figure.legend(
        axes.lines[: len(lines)], [f"method {place}" for place in range(len(lines))], loc="outside upper left",
        ncols=_legend_columns([line.label for line in lines], columns), borderaxespad=0.2,
    )  # fmt: skip
    for entry, line in zip(legend.get_texts(), lines, strict=True):
        entry.set_parse_math(False)
        entry.set_text(clean(shortened(line.label)))


def _legend_columns(labels: Sequence[str], columns: int) -> int:
    """How many names stand beside each other; of long ones fewer."""
    longest = max(map(len, labels))
    return max(1, min(len(labels), columns if longest <= 14 else columns // 2))


def _legend_height(labels: Sequence[str], columns: int) -> float:
    """Inches: many names make the picture taller, and not its frame smaller."""
    return 0.15 * -(-len(labels) // _legend_columns(labels, columns))


def _forest(rows: Sequence[tuple[str, int, Estimate, Sequence[float]]], x: str, middle: float | None = None) -> Figure:
    figure, (axes,) = _frames(COLUMN, 0.55 + 0.26 * len(rows), 1, 1)
    for height, (_, place, found, runs) in enumerate(rows):
        look = line_look(place)
        axes.plot(runs, [height + 0.25] * len(runs), ".", color=look["color"], markersize=3, alpha=0.6, markeredgewidth=0)
        if found.low is not None and found.high is not None:
            axes.plot([found.low, found.high], [height, height], color=look["color"], linewidth=1.6)
        axes.plot([found.value], [height], look["marker"], color=look["color"], markersize=5)
    if middle is not None:
        axes.axvline(middle, color="#555555", linewidth=0.8, linestyle="--")
        axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_yticks(range(len(rows)))
    for tick in axes.get_yticklabels():
        tick.set_parse_math(False)
    axes.yaxis.set_major_formatter(_words([clean(shortened(label)) for label, *_ in rows]))
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(clean(x), parse_math=False)
    return figure


def _words(labels: Sequence[str]) -> Callable[[float, float], str]:
    return lambda value, _: labels[round(value)] if 0 <= round(value) < len(labels) else ""


def _on_the_way(found: Comparison, task: str, places: dict[str, int]) -> Iterator[Picture]:
    """What the methods did, as small frames over both columns."""
    watched = [each for each in found.diagnostics[task] if each.curves]
    if not watched:
        return
    across = 4
    down = -(-len(watched) // across)
    figure, frames = _frames(PAGE, 1.35 * down + 0.2 + _legend_height(found.labels, 6), down, across)
    shown: dict[str, Line] = {}
    fullest = frames[0]
    for axes, each in zip(frames, watched, strict=False):
        lines = [
            Line(label, curve["step"], curve["middle"], curve["low"], curve["high"])
            for label in found.labels if (curve := each.curves.get(label))
        ]  # fmt: skip
        _draw(axes, lines, places)
        _whole_ticks(axes)
        axes.set_title(clean(each.title))
        if len(lines) > len(shown):
            shown, fullest = {line.label: line for line in lines}, axes
    for axes in frames[len(watched) :]:
        axes.set_visible(False)
    figure.supxlabel("steps", fontsize=8)
    _legend(figure, fullest, list(shown.values()), columns=6)
    yield figure_name("on-the-way", found, task), figure


def _frames(width: float, height: float, down: int, across: int) -> tuple[Figure, list[Axes]]:
    """Without pyplot, which would keep every figure and ask for a screen."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, list(figure.subplots(down, across, squeeze=False).flat)
