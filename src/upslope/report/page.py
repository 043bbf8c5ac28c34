"""``report.html``: a run on one page that needs nothing else, neither the network nor a script.

Prompts and answers come from models and from users' files, so every word of them is escaped, and the page forbids itself to load or
run anything: a rollout that spells out a script is only text. Values under the pointer are SVG titles.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from upslope.plain_data import JsonDict
from upslope.report.curves import Mark, chart, number, sparkline
from upslope.report.describe import changes, slots
from upslope.report.style import STYLE
from upslope.report.words import amount, clock, counted, measured, phase_name
from upslope.run import Run
from upslope.runtime.files import write_text
from upslope.runtime.settings import of_domain

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
LONGEST_TEXT = 2000
"""Characters of a prompt or answer that are shown; the whole stands in ``samples.jsonl``."""
SAMPLES_SHOWN = 4


class PageCurve(NamedTuple):
    """A small chart of one metric."""

    key: str
    title: str
    meaning: str
    share: bool = False
    """A share between 0 and 1."""


CURVES = (
    PageCurve("q_value", "Values", "What the critics say of stored actions. They should not leave what rewards allow."),
    PageCurve("q_td_error", "TD error", "How far the critics are from their targets."),
    PageCurve("temperature", "Temperature", "Weight of the entropy."),
    PageCurve("imitation", "Imitation", "How far the policy is from the recorded actions."),
    PageCurve("preferred", "Preferred", "Share of contests in which the winner's score is above the loser's.", share=True),
    PageCurve("margin", "Margin", "By how much it is above."),
    PageCurve("logp_chosen", "Log-likelihood of the chosen", "The loss asks for a difference alone: it may fall."),
    PageCurve("logp_rejected", "Log-likelihood of the rejected", ""),
    PageCurve("entropy", "Entropy", "How undecided the policy is. At zero it has stopped trying."),
    PageCurve("kl_start", "KL to the start", "How far it has moved from where it began."),
    PageCurve("clip_fraction", "Clip fraction", "Decisions held back by the trust region."),
    PageCurve("learning", "Learning decisions", "Share of decisions with a gradient.", share=True),
    PageCurve("grad_norm", "Gradient norm", "Before clipping."),
    PageCurve("length", "Length", "Tokens of an answer."),
    PageCurve("episode_length", "Episode length", "Steps of an episode."),
    PageCurve("constant_groups", "Groups without signal", "All answers earned the same.", share=True),
    PageCurve("kl_proximal", "KL within a step", "How far the updates of a step move the policy."),
    PageCurve("lr", "Learning rate", ""),
)


def write_report(run: Run) -> Path:
    """Writes ``report.html`` into the run's folder, whole or not at all; a run under way gets one too."""
    path = run.path / "report.html"
    write_text(path, page(run))
    return path


def page(run: Run) -> str:
    """The report as HTML text."""
    steps, evaluations = run.metrics, run.evaluations
    title = f"{run.plan.method.name} on {run.plan.task_name}"
    sections = [
        _header(run, steps, title),
        _headline(run, steps, evaluations),
        _learning(steps, evaluations, _stage_breaks(run, steps)),
        _curves(steps, _stage_breaks(run, steps)),
        _rollouts(run.folder.read("samples.jsonl")),
        _method(run),
        _settings(run),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">\n'
        f"<title>{_text(title)}</title>\n<style>{STYLE}</style></head>\n<body><main>\n"
        + "\n".join(section for section in sections if section)
        + "\n</main></body></html>\n"
    )


# -- sections --------------------------------------------------------------------------------------------------------------


def _header(run: Run, steps: list[JsonDict], title: str) -> str:
    plan = run.plan
    finished = (run.path / "summary.json").exists()
    state = "finished" if finished else f"not finished: {len(steps)} of {plan.settings.steps} steps"
    model = f"{plan.model}, " if plan.domain == "text" else ""
    return (
        f"<header><h1>{_text(title)}</h1>"
        f'<p class="sub">{_text(model)}seed {plan.settings.seed}, {_text(state)}<br>'
        f"<code>{_text(str(run.path))}</code></p></header>"
    )


def _headline(run: Run, steps: list[JsonDict], evaluations: list[JsonDict]) -> str:
    tiles = []
    if evaluations:
        before, after = evaluations[0], evaluations[-1]
        name = "Held-out accuracy" if "problems" in after else "Mean return"
        moved = f'<span class="was">{_text(_score(before))}</span> <span class="arrow">&rarr;</span> {_text(_score(after))}'
        if len(evaluations) == 1:
            moved = _text(_score(before))
        said = f"before {measured(before)}, after {measured(after)}" if len(evaluations) > 1 else f"before {measured(before)}"
        tiles.append(
            _tile(name, moved, f"{said}; 95% intervals, {counted(after)} never learned from", f"wide {_tone(before, after)}")
        )
    if steps:
        seconds = sum(float(record.get("seconds") or 0) for record in steps)
        tokens = sum(float(record.get("tokens") or 0) for record in steps)
        unit = "decisions" if run.plan.domain == "control" else "tokens"
        tiles.append(_tile("Steps", f"{len(steps):,}", f"of {run.plan.settings.steps}"))
        tiles.append(_tile("Time", clock(seconds), "sampling and learning"))
        tiles.append(_tile(unit.capitalize(), amount(tokens), f"{tokens / max(seconds, 1e-9):,.0f} a second"))
    return f'<section class="tiles">{"".join(tiles)}</section>' if tiles else ""


def _tile(name: str, value: str, below: str, kind: str = "") -> str:
    return f'<div class="tile {kind}"><h3>{_text(name)}</h3><p class="big">{value}</p><p class="note">{_text(below)}</p></div>'


def _tone(before: JsonDict, after: JsonDict) -> str:
    return "up" if after["score"] > before["score"] else "down" if after["score"] < before["score"] else ""


def _score(result: JsonDict) -> str:
    return f"{result['score']:.2f}" if "problems" in result else f"{result['score']:,.1f}"


def _stage_breaks(run: Run, steps: list[JsonDict]) -> list[tuple[float, str]]:
    """Where one stage of the method ends and the next one begins, between two steps."""
    found = []
    for before, after in pairwise(steps):
        if before.get("stage") != after.get("stage"):
            found.append(
                (after["step"] - 0.5, f"from step {after['step']} on: {phase_name(run.plan.method, after.get('stage', 0))}")
            )
    return found


def _learning(steps: list[JsonDict], evaluations: list[JsonDict], breaks: list[tuple[float, str]]) -> str:
    key, name = ("episode_return", "return") if any("episode_return" in record for record in steps) else ("reward", "reward")
    points = _points(steps, key)
    held_out = "mean return" if key == "episode_return" else "accuracy"
    marks = [
        Mark(e["step"], e["score"], e["low"], e["high"], f"step {e['step']}: {held_out} {measured(e)} on {counted(e)}")
        for e in evaluations
    ]
    if not points and not marks:
        return ""
    within = key == "reward" and all(0 <= y <= 1 for _, y in points)
    # Rewards of another scale than a share of right answers would flatten one of the two: then each has its own picture.
    together = key == "episode_return" or within
    bounds = (0.0, 1.0) if within else None
    window = max(1, len(points) // 20)
    drawn = chart(points, label=name, marks=marks if together else (), window=window, bounds=bounds, breaks=breaks)
    if not together:
        drawn += chart([], label=held_out, marks=marks, height=160, bounds=(0.0, 1.0), breaks=breaks)
    mean = f", bold: its mean over {window} steps" if window > 1 and len(points) > window else ""
    legend = (
        f'<p class="legend"><span class="key line"></span>{name} in training{mean}'
        f'<span class="key point"></span>{held_out} on what it never learned from, with its 95% interval</p>'
    )
    return f"<section><h2>Learning curve</h2>{legend}<figure>{drawn}</figure></section>"


def _curves(steps: list[JsonDict], breaks: list[tuple[float, str]]) -> str:
    figures = []
    for curve in CURVES:
        points = _points(steps, curve.key)
        if points:
            bounds = (0.0, 1.0) if curve.share else None
            inside = [each for each in breaks if points[0][0] < each[0] < points[-1][0]]  # some metrics a stage does not have
            drawn = chart(points, label=curve.title.lower(), width=340, height=150, bounds=bounds, breaks=inside)
            figures.append(
                f"<figure><figcaption><b>{curve.title}</b> <span>{number(points[-1][1])}</span><br>"
                f'<span class="note">{curve.meaning}</span></figcaption>{drawn}</figure>'
            )
    return f'<section><h2>How it went</h2><div class="multiples">{"".join(figures)}</div></section>' if figures else ""


def _rollouts(samples: list[JsonDict]) -> str:
    told = [sample for sample in samples if "response" in sample or sample.get("episode_returns")]
    steps = sorted({sample["step"] for sample in told})
    if not steps:
        return ""
    stages = dict(zip((steps[0], steps[len(steps) // 2], steps[-1]), ("Early", "Middle", "Late"), strict=True))
    columns = []
    for step, name in stages.items():
        some = [sample for sample in told if sample["step"] == step][:SAMPLES_SHOWN]
        columns.append(f"<div><h3>{name}, step {step}</h3>{''.join(map(_sample, some))}</div>")
    return f'<section><h2>Rollouts</h2><div class="rollouts">{"".join(columns)}</div></section>'


def _sample(sample: JsonDict) -> str:
    if "response" not in sample:
        return _episodes(sample["episode_returns"])
    reward, advantage = sample.get("reward"), sample.get("advantage")
    tone = "plain" if not isinstance(advantage, (int, float)) or advantage == 0 else "good" if advantage > 0 else "bad"
    cut = '<span class="chip">cut at the limit</span>' if sample.get("finish") == "length" else ""
    answer = f'<dt>a right answer</dt><dd class="said">{_long(sample["answer"])}</dd>' if sample.get("answer") else ""
    return (
        f'<article class="{tone}"><dl><dt>prompt</dt><dd class="said">{_long(sample.get("prompt", ""))}</dd>'
        f'<dt>response</dt><dd class="said strong">{_long(sample["response"])}</dd>{answer}</dl>'
        f'<p><span class="chip">reward {_number(reward)}</span>{_components(sample.get("components"))}'
        f'<span class="chip {tone}">advantage {_number(advantage)}</span>{cut}</p>'
        "</article>"
    )


def _components(found: object) -> str:
    """The rewards that make up a sample's reward."""
    values = found if isinstance(found, dict) else {}
    return "".join(f'<span class="chip">{_text(str(name))} {_number(value)}</span>' for name, value in values.items())


def _episodes(returns: list[float]) -> str:
    count = f"{len(returns)} episode{'s' if len(returns) != 1 else ''} ended"
    spread = f"returns {number(min(returns))} to {number(max(returns))}, half of them below {number(median(returns))}"
    return f'<article><p class="bars">{sparkline(returns, 48)}</p><p class="note">{count}; {spread}.</p></article>'


def _method(run: Run) -> str:
    method = run.plan.method
    changed = changes(method)
    rows = []
    for slot, text in slots(method).items():
        old = changed.get(slot, ("", ""))[0]
        was = f'<br><span class="note">in {_text(method.parent)}: {_text(old)}</span>' if slot in changed else ""
        rows.append(
            f'<tr class="{"changed" if slot in changed else "kept"}"><th>{slot}</th><td><code>{_text(text)}</code>{was}</td></tr>'
        )
    for slot, (old, new) in changed.items():
        if new == "none":
            was = f'<span class="note">in {_text(method.parent)}: {_text(old)}</span>'
            rows.append(f'<tr class="changed"><th>{slot}</th><td>none<br>{was}</td></tr>')
    formula = f'<pre class="formula">{_text(method.formula)}</pre>' if method.formula else ""
    notes = f'<p class="note">{_text(method.notes)}</p>' if method.notes else ""
    legend = f'<p class="note">Marked: what differs from {_text(method.parent)}.</p>' if changed else ""
    return (
        f"<section><h2>The method</h2><p><b>{_text(method.name)}</b>, {_paper(method.paper)}</p><p>{_text(method.differs)}</p>"
        f"{formula}{legend}<table>{''.join(rows)}</table>{notes}</section>"
    )


def _paper(paper: Any) -> str:
    if re.fullmatch(r"\d{4}\.\d{4,5}", paper.arxiv):
        return f'{_text(paper.title)} ({paper.year}, <a href="https://arxiv.org/abs/{paper.arxiv}">arXiv {paper.arxiv}</a>)'
    return _text(str(paper))


def _settings(run: Run) -> str:
    plan = run.plan
    values = {"task": plan.task_name, "model": plan.model, "reward": ", ".join(plan.reward), "test_data": plan.test_data}
    values = {key: value for key, value in values.items() if value} | {
        key: value for key, value in of_domain(dataclasses.asdict(plan.settings), plan.domain).items() if value is not None
    }
    rows = "".join(f"<tr><th>{key}</th><td><code>{_text(str(value))}</code></td></tr>" for key, value in values.items())
    return f"<section><details><summary>Settings</summary><table>{rows}</table></details></section>"


# -- small things ----------------------------------------------------------------------------------------------------------


def _points(steps: Sequence[JsonDict], key: str) -> list[tuple[float, float]]:
    found = [(record["step"], record.get(key)) for record in steps]
    return [(float(step), float(y)) for step, y in found if isinstance(y, (int, float)) and math.isfinite(y)]


def _number(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, (int, float)) else "none"


def _long(value: object) -> str:
    text = str(value)
    left = len(text) - LONGEST_TEXT
    return _text(text[:LONGEST_TEXT]) + (f' <span class="note">and {left:,} characters more</span>' if left > 0 else "")


def _text(value: str) -> str:
    """Escaped, and writable: half a surrogate pair, which JSON can hold, cannot stand in a file."""
    return escape(value.encode("utf-8", "replace").decode("utf-8"))
