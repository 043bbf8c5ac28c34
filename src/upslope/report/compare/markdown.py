"""``report.md``: the tables of a comparison, to be pasted where people talk about it."""

from __future__ import annotations

from collections.abc import Sequence

from upslope.report.compare.measuring import Comparison
from upslope.report.compare.terminal import (
    LEARNED_HEADER,
    LEARNED_RULE,
    NO_THRESHOLD,
    PAIR_HEADER,
    SAMPLED,
    diagnostic_text,
    estimate_text,
    find_reached,
    learned_cells,
    pair_cells,
    reached_text,
    reached_title,
)
from upslope.report.curves import number


def markdown(found: Comparison) -> str:
    """The comparison as Markdown."""
    several = len(found.tasks) > 1
    blocks = [f"# {plain(found.finding)}", f"{plain(found.title)}: {plain(found.conditions)}."]
    blocks += [f"    {' '.join(found.command.split())}"] if found.command else []
    blocks += ["\n".join(f"- {plain(sentence)}" for sentence in found.sentences)] if found.sentences else []
    blocks += ["## Final score", "Interquartile mean over seeds [95% stratified bootstrap interval].", scores(found)]
    if any(each.threshold is None for each in found.efficiency.values()):
        blocks.append(NO_THRESHOLD)
    if found.normalised:
        told = "; ".join(
            f"{plain(task)}: {number(low)} is 0, {number(high)} is 1" for task, (low, high) in found.normalised.items()
        )
        blocks.append(f"Scores taken over all tasks are normalised ({told}).")
    cells = [learned_cells(found, each) for each in found.learned]
    blocks += ["## What was learned", rows_of(LEARNED_HEADER, [[plain(who), *rest] for who, *rest in cells]), LEARNED_RULE]
    if found.pairs:
        rule = "P: the chance that a run of the first is better than one of the second. Its interval is at the level at which "
        rule += "Holm's method tests the pair. A win is an adjusted p of at most 0.05."
        blocks += [
            "## Pairs",
            rows_of(PAIR_HEADER, [[plain(who), *rest, plain(result)] for who, *rest, result in map(pair_cells, found.pairs)]),
        ]
        blocks.append(rule)
    for task, lines in found.passes.items():
        header = ["method", *(f"pass@{int(k)}" for k in lines[0].x)]
        body = [[plain(line.label), *(f"{value:.3f}" for value in line.middle)] for line in lines]
        blocks += [f"## pass@k{f' on {plain(task)}' if several else ''}", SAMPLED, rows_of(header, body)]
    for task in found.tasks:
        body = [
            [f"{each.title} ({each.when})", *(diagnostic_text(each.values.get(label)) for label in found.labels)]
            for each in found.diagnostics[task]
        ]
        blocks += [f"## On the way{f', {plain(task)}' if several else ''}", rows_of(["", *map(plain, found.labels)], body)]
    if found.notes or found.failures:
        blocks += ["## Notes", "\n".join(f"- {plain(note)}" for note in (*found.failures, *found.notes))]
    return "\n\n".join(blocks) + "\n"


def scores(found: Comparison) -> str:
    """A row per method: scores, and steps to the threshold."""
    several = len(found.tasks) > 1
    header = ["method", "runs", *(f"{found.score_name[task]}{f', {plain(task)}' if several else ''}" for task in found.tasks)]
    header += ["all tasks"] if several else []
    header += [reached_title(found.efficiency[task], plain(task) if several else "") for task in found.tasks]
    body = []
    for each in found.standings:
        row = [plain(each.label), str(sum(len(some.seeds) for some in each.tasks.values()))]
        row += [estimate_text(each.tasks[task].score) if task in each.tasks else "-" for task in found.tasks]
        row += [estimate_text(each.score)] if several else []
        row += [reached_text(find_reached(found.efficiency[task], each.label)) for task in found.tasks]
        body.append(row)
    return rows_of(header, body)


def rows_of(header: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def plain(text: str) -> str:
    """Words of users in which no character is markup."""
    for character in "\\`*_<>|[]":
        text = text.replace(character, f"\\{character}")
    return text.replace("\n", " ")
