"""``report.html`` of a comparison: the answer first, then all it rests on, on one page that needs neither network nor script.

The switch between axes is radio buttons and style rules. Labels are users' words and are escaped; the page forbids itself to
load or run anything, as the report of a run does.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from pathlib import PurePath

from upslope.report.compare import charts
from upslope.report.compare.latex import latex
from upslope.report.compare.measuring import AXES, Comparison, Estimate, Line, Standing
from upslope.report.compare.numbers import numbers
from upslope.report.compare.style import STYLE
from upslope.report.compare.terminal import (
    LEARNED_HEADER,
    LEARNED_RULE,
    NO_THRESHOLD,
    SAMPLED,
    diagnostic_text,
    estimate_text,
    find_reached,
    learned_cells,
    pair_cells,
    reached_text,
    reached_title,
)
from upslope.report.compare.verdict import Pair
from upslope.report.curves import number
from upslope.report.page import POLICY
from upslope.report.style import STYLE as BASE


def page(found: Comparison) -> str:
    """The report as HTML text."""
    drawn = Drawn(found)
    sections = [
        _header(found), _verdict(found), _learned(found),
        drawn.scores(), drawn.learning(), drawn.pairs(), drawn.further(), drawn.diagnostics(),
        _rule(found), _notes(found), _taken_along(found), _settings(found), _runs(found),
    ]  # fmt: skip
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">\n'
        f"<title>{_text(found.title)}</title>\n<style>{BASE}{STYLE}</style></head>\n<body><main>\n"
        + "\n".join(section for section in sections if section)
        + "\n</main></body></html>\n"
    )


def _header(found: Comparison) -> str:
    told = [found.conditions]
    told += ["paired: with one seed all methods start from the same weights and draw the same problems"] if found.paired else []
    return (
        f'<header><h1>{_text(found.finding)}</h1><p class="about">{_text(found.title)}</p>'
        f'<p class="sub">{_text("; ".join(told))}</p></header>'
    )


def _verdict(found: Comparison) -> str:
    lines = [f'<li class="{"win" if pair.wins else "open"}">{_text(pair.sentence)}</li>' for pair in found.pairs]
    lines += [f'<li class="stop">{_text(reason)}</li>' for reason in found.obstacles]
    lines += [f'<li class="stop">{_text(failure)}</li>' for failure in found.failures]
    if not lines:
        return ""
    answer = '<p class="answer">These runs are not ranked.</p>' if found.obstacles else ""
    return f'<section class="verdict">{answer}<ul>{"".join(lines)}</ul></section>'


def _learned(found: Comparison) -> str:
    rows = []
    for each in found.learned:
        who, *cells, outcome = learned_cells(found, each)
        kind = ' class="won"' if each.outcome == "learned" else ""
        shown = "".join(f'<td class="n">{_text(cell)}</td>' for cell in cells)
        rows.append(f"<tr><th>{_text(who)}</th>{shown}<td{kind}>{_text(outcome)}</td></tr>")
    body = _table(("", *LEARNED_HEADER[1:]), "".join(rows))
    return f'<section><h2>What was learned</h2><p class="note">{_text(LEARNED_RULE)}</p>{body}</section>'


class Drawn:
    """The sections with pictures; every method keeps its colour through all of them."""

    def __init__(self, found: Comparison):
        self.found = found
        self.places = {label: place for place, label in enumerate(found.labels)}

    def _keys(self) -> str:
        keys = [
            f'<span><svg class="swatch" viewBox="0 0 36 10" aria-hidden="true">'
            f'<line class="line {charts.series(place)}" x1="1" x2="35" y1="5" y2="5"/></svg>{_text(label)}</span>'
            for label, place in self.places.items()
        ]
        return f'<p class="keys">{"".join(keys)}</p>'

    # -- final scores ----------------------------------------------------------------------------------------------------

    def scores(self) -> str:
        found = self.found
        several = len(found.tasks) > 1
        figures = []
        if several and not found.obstacles:
            rows = [
                charts.ChartRow(each.label, self.places[each.label], each.score, (), estimate_text(each.score))
                for each in found.standings
            ]
            said = "All tasks together" + (", normalised" if found.normalised else "")
            figures.append(_figure(said, charts.forest(rows, label="final score over all tasks"), wide=True))
        for task in found.tasks:
            rows = [self._row(each, task) for each in found.standings if task in each.tasks]
            name = f"{found.score_name[task].capitalize()} on {task}"
            figures.append(_figure(name, charts.forest(rows, label=f"final {found.score_name[task]} on {task}"), wide=True))
        note = "Interquartile mean over seeds with its 95% stratified bootstrap interval; the small dots are single runs."
        if found.normalised:
            scales = "; ".join(
                f"on {task}, {number(low)} is 0 and {number(high)} is 1" for task, (low, high) in found.normalised.items()
            )
            note += f" Over all tasks, scores are normalised: {scales}."
        return (
            f'<section><h2>Final score</h2><p class="note">{_text(note)}</p><div class="stack">{"".join(figures)}</div></section>'
        )

    def _row(self, standing: Standing, task: str) -> charts.ChartRow:
        some = standing.tasks[task]
        runs = [
            (value, f"{standing.label}, seed {seed}: {number(value)}") for seed, value in zip(some.seeds, some.after, strict=True)
        ]
        return charts.ChartRow(standing.label, self.places[standing.label], some.score, runs, estimate_text(some.score))

    # -- curves ----------------------------------------------------------------------------------------------------------

    def learning(self) -> str:
        found = self.found
        views = []
        for axis in AXES:
            figures = []
            for task in found.tasks:
                lines = found.curves[task][axis]
                if lines and lines[0].x:
                    name = found.score_name[task]
                    drawn = charts.curves(lines, self.places, label=name, axis=axis, share=name == "accuracy")
                    figures.append(_figure(f"{name.capitalize()} on {task}", drawn, wide=True))
            views.append(f'<div class="by-{axis}">{"".join(figures)}</div>')
        if not any("<svg" in view for view in views):
            return ""
        picks = "".join(
            f'<input class="pick" type="radio" name="axis" id="axis-{axis}"{" checked" if axis == AXES[0] else ""}/>'
            for axis in AXES
        )
        labels = "".join(f'<label for="axis-{axis}">{axis}</label>' for axis in AXES)
        note = "Held-out score along the runs: interquartile mean over seeds, band: 95% bootstrap interval. Against:"
        return (
            f'<section><h2>Learning curves</h2><p class="note">{note}</p>{picks}<div class="switch">{labels}</div>'
            f'<div class="views">{"".join(views)}</div></section>'
        )

    # -- pairs -----------------------------------------------------------------------------------------------------------

    def pairs(self) -> str:
        pairs = self.found.pairs
        if not pairs:
            return ""
        rows = [
            charts.ChartRow(
                f"{pair.ours} over {pair.theirs}",
                self.places[pair.ours],
                Estimate(pair.chance, pair.low, pair.high),
                (),
                f"{pair.chance:.2f} [{pair.low:.2f}, {pair.high:.2f}]",
            )
            for pair in pairs
        ]
        drawn = charts.forest(rows, label="probability of improvement", middle=0.5, bounds=(0.0, 1.0))
        header = ("pair", "P", "interval", "at level", "difference [95%]", "seeds ahead", "p", "p (Holm)", "result")
        body = "".join(f"<tr>{self._pair(pair)}</tr>" for pair in pairs)
        note = "P is the chance that a run of the first beats a run of the second. Right of the dashed line is better."
        return (
            f'<section><h2>Probability of improvement</h2><p class="note">{note}</p>'
            f'<figure class="broad" tabindex="0">{drawn}</figure>{_table(header, body)}</section>'
        )

    def _pair(self, pair: Pair) -> str:
        who, chance, interval, difference, ahead, adjusted, result = pair_cells(pair)
        cells = [chance, interval, f"{pair.level:.1%}", difference, ahead, f"{pair.p:.4f}", adjusted]
        kind = ' class="won"' if pair.wins else ""
        return (
            f"<th>{_text(who)}</th>"
            + "".join(f'<td class="n">{_text(cell)}</td>' for cell in cells)
            + f"<td{kind}>{_text(result)}</td>"
        )

    # -- profiles, efficiency, pass@k ------------------------------------------------------------------------------------

    def further(self) -> str:
        found = self.found
        several = len(found.tasks) > 1
        figures = []
        if found.profiles:
            name = "normalised score" if found.normalised else "score" if several else found.score_name[found.tasks[0]]
            drawn = charts.profile(found.profiles, self.places, label=f"share of runs above each {name}")
            figures.append(_figure("Performance profile", drawn, f"Share of the runs with a final {name} above that on the axis."))
        for task, lines in found.passes.items():
            where = f" on {task}" if several else ""
            drawn = charts.over_k(lines, self.places)
            figures.append(
                _figure(
                    f"pass@k{where}", drawn, f"The chance that one of k sampled answers to a held-out problem is right. {SAMPLED}"
                )
            )
        blocks = [f'{self._keys()}<div class="two">{"".join(figures)}</div>'] if figures else []
        blocks += [self._efficiency()]
        return f"<section><h2>Spread, samples and speed</h2>{''.join(blocks)}</section>"

    def _efficiency(self) -> str:
        found = self.found
        several = len(found.tasks) > 1
        header = (
            "method",
            *(reached_title(found.efficiency[task], task if several else "") for task in found.tasks),
            "95% interval",
        )
        rows = []
        for label in found.labels:
            cells = [reached_text(find_reached(found.efficiency[task], label)) for task in found.tasks]
            first = find_reached(found.efficiency[found.tasks[0]], label)
            ends = "-"
            if first is not None and first.of > 1 and first.low is not None:
                ends = f"{first.low:g} to {'not yet' if first.high is None else f'{first.high:g}'}"
            cells.append(ends if not several else "-")
            shown = "".join(f'<td class="n">{_text(cell)}</td>' for cell in cells)
            rows.append(f"<tr><th>{_text(label)}</th>{shown}</tr>")
        if all(each.threshold is None for each in found.efficiency.values()):
            return f'<h3 class="spaced">Steps to a threshold</h3><p class="note">{_text(NO_THRESHOLD)}</p>'
        aim = next(each for each in found.efficiency.values() if each.threshold is not None)
        how = "as given" if aim.given else "80% of the way from the start to the best method's final score"
        note = (
            f"Steps until half of a method's runs were evaluated at the threshold ({how}) or above; in brackets how many got there."
        )
        return f'<h3 class="spaced">Steps to a threshold</h3><p class="note">{_text(note)}</p>{_table(header, "".join(rows))}'

    # -- diagnostics -----------------------------------------------------------------------------------------------------

    def diagnostics(self) -> str:
        found = self.found
        blocks = []
        for task in found.tasks:
            figures = []
            for each in found.diagnostics[task]:
                lines = [
                    Line(label, curve["step"], curve["middle"], curve["low"], curve["high"])
                    for label in found.labels if (curve := each.curves.get(label))
                ]  # fmt: skip
                if lines:
                    drawn = charts.small(lines, self.places, label=each.title.lower(), share=each.share)
                    figures.append(_figure(each.title, drawn, each.meaning))
            rows = [
                f"<tr><th>{each.title}</th>"
                + "".join(f'<td class="n">{diagnostic_text(each.values.get(label))}</td>' for label in found.labels)
                + f'<td class="note">{each.when}</td></tr>'
                for each in found.diagnostics[task]
            ]
            head = f"<h3>{_text(task)}</h3>" if len(found.tasks) > 1 else ""
            table = _table(("", *found.labels, ""), "".join(rows))
            blocks.append(f'{head}<div class="multiples">{"".join(figures)}</div>{table}')
        return f"<section><h2>On the way</h2>{self._keys()}{''.join(blocks)}</section>"


# -- the rest --------------------------------------------------------------------------------------------------------------


def _rule(found: Comparison) -> str:
    if not found.pairs:
        return ""
    pairs = len(found.pairs)
    test = "labels are exchanged between the runs of the same seed"
    if not any(pair.paired for pair in found.pairs):
        test = "labels are exchanged among all runs of a task"
        test += ", not only between those of the same seed: so few of them could never decide" if found.paired else ""
    words = [f"Each pair is decided by an exact permutation test of P: {test}."]
    if pairs > 1:
        words[0] += f" The p of all {pairs} pairs are adjusted by Holm's method, so that the chance of any false win among equal "
        words[0] += "methods is at most 5%."
    words[0] += f" {'An adjusted p' if pairs > 1 else 'A p'} of at most 0.05 is a win, and nothing else is."
    words.append(
        "The interval of P is Newcombe's score interval at the level at which Holm's method tests the pair. A bootstrap interval "
        "would have no width where all runs of one method are better. How many more seeds would be needed is a normal "
        "approximation for a power of 80% if the runs to come are like these: a rough guess, the rougher the fewer seeds there are."
    )
    return f"<section><h2>How it was decided</h2>{''.join(f'<p>{_text(each)}</p>' for each in words)}</section>"


def _notes(found: Comparison) -> str:
    if not found.notes:
        return ""
    return f"<section><h2>Notes</h2><ul>{''.join(f'<li>{_text(note)}</li>' for note in found.notes)}</ul></section>"


def _taken_along(found: Comparison) -> str:
    """The numbers and the table for a paper inside the page: whoever is sent it has them too."""
    again = (
        f'<p>To make this comparison again:</p><pre class="formula" tabindex="0">{_text(found.command)}</pre>'
        if found.command
        else ""
    )
    packed = base64.b64encode(numbers(found).encode()).decode()
    return (
        f"<section><h2>To repeat, to draw and to print</h2>{again}<p>Every number of this page: "
        f'<a download="numbers.csv" href="data:text/csv;charset=utf-8;base64,{packed}">numbers.csv</a></p>'
        '<details class="close"><summary>LaTeX table</summary>'
        f'<pre class="formula" tabindex="0">{_text(latex(found))}</pre></details></section>'
    )


def _settings(found: Comparison) -> str:
    blocks = []
    for task in found.tasks:
        rows = "".join(
            f"<tr><th>{_text(key)}</th><td><code>{_text(str(value))}</code></td></tr>"
            for key, value in found.settings[task].items()
        )
        blocks.append(f"<h3>{_text(task)}</h3><table>{rows}</table>")
    return f"<section><details><summary>Settings that all runs share</summary>{''.join(blocks)}</details></section>"


def _runs(found: Comparison) -> str:
    rows = "".join(
        f"<tr><th>{_text(label)}</th><td>{'<br>'.join(f'<code>{_text(_sendable(path))}</code>' for path in paths)}</td></tr>"
        for label, paths in found.runs.items()
    )
    return f"<section><details><summary>Runs</summary><table>{rows}</table></details></section>"


def _sendable(path: str) -> str:
    """A folder without the home of whoever made it: the page is sent to others. ``comparison.json`` has the whole path."""
    return path if not PurePath(path).is_absolute() else "/".join(["…", *PurePath(path).parts[-2:]])


def _table(header: Sequence[str], body: str) -> str:
    # To be reached by the keyboard, which else could not move what is wider than a phone.
    return (
        '<div class="scroll" tabindex="0" role="group" aria-label="table">'
        f'<table class="figures"><thead><tr>{_heads(header)}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _heads(names: Sequence[str]) -> str:
    kinds = ["" if place == 0 or name in ("result", "") else ' class="n"' for place, name in enumerate(names)]
    cells = zip(kinds, names, strict=True)
    return "".join(f"<th{kind}>{_text(name)}</th>" if name else f"<td{kind}></td>" for kind, name in cells)


def _figure(title: str, drawn: str, meaning: str = "", *, wide: bool = False) -> str:
    below = f'<br><span class="note">{_text(meaning)}</span>' if meaning else ""
    focus = ' tabindex="0"' if wide else ""
    return f"<figure{focus}><figcaption><b>{_text(title)}</b>{below}</figcaption>{drawn}</figure>"


def _text(value: str) -> str:
    """Escaped, and writable whatever half characters a label holds."""
    return escape(value.encode("utf-8", "replace").decode("utf-8"))
