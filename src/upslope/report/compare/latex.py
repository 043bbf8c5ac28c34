"""The tables of a comparison for a paper: LaTeX in the style of booktabs, every number with its interval."""

from __future__ import annotations

from collections.abc import Sequence

from upslope.report.compare.measuring import Comparison, Estimate
from upslope.report.compare.terminal import estimate_text, find_reached, pair_cells, reached_text, reached_title

SPECIAL = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "_": r"\_", "%": r"\%",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
    '"': r"\textquotedbl{}", "`": r"\textasciigrave{}",
    # Behind the end of a row these would be taken for its options.
    "[": "{[}", "]": "{]}", "*": "{*}",
}  # fmt: skip
"""Characters that LaTeX reads as commands, and how each is written."""
NARROW = 3
"""Columns of a table that one column of a page holds; more go over both."""


def latex(found: Comparison) -> str:
    r"""The final scores, and the pairs where methods are ranked, as two ``table`` environments; needs ``\usepackage{booktabs}``."""
    tables = [_scores(found), *([_pairs(found)] if found.pairs else [])]
    made = f"% Made by: {' '.join(found.command.split())}\n" if found.command else ""
    return f"% Needs \\usepackage{{booktabs}} and \\usepackage[T1]{{fontenc}}.\n{made}" + "\n".join(tables)


def plain(text: str) -> str:
    """Words of users in which no character is a command."""
    writable = text.encode("utf-8", "replace").decode("utf-8")
    return "".join(SPECIAL.get(character, character if character.isprintable() else " ") for character in writable)


def _scores(found: Comparison) -> str:
    several = len(found.tasks) > 1
    everywhere = several and not found.obstacles
    reached = [task for task in found.tasks if found.efficiency[task].threshold is not None]
    header = ["Method", "Runs"]
    header += [f"{found.score_name[task].capitalize()}{f', {task}' if several else ''}" for task in found.tasks]
    header += ["All tasks"] if everywhere else []
    header += [reached_title(found.efficiency[task], task if several else "").capitalize() for task in reached]
    best = _winner(found)
    body = []
    for each in found.standings:
        row = [plain(each.label), str(sum(len(some.seeds) for some in each.tasks.values()))]
        row += [_estimate(each.tasks[task].score) if task in each.tasks else "--" for task in found.tasks]
        row += [_estimate(each.score)] if everywhere else []
        row += [plain(reached_text(find_reached(found.efficiency[task], each.label))) for task in reached]
        body.append([f"\\textbf{{{row[0]}}}", *row[1:]] if each.label == best else row)
    conditions = f"{found.conditions[:1].upper()}{found.conditions[1:]}."
    caption = f"{found.finding} {conditions} Interquartile mean over seeds with its 95% stratified bootstrap interval."
    if everywhere and found.normalised:
        caption += " Over all tasks, scores are normalised."
    if best is not None:
        caption += " Bold: beats all others."
    return _table(caption, "scores", "lr" + "l" * (len(header) - 2), [plain(name) for name in header], body)


def _pairs(found: Comparison) -> str:
    body = []
    for pair in found.pairs:
        who, chance, interval, difference, ahead, adjusted, _ = pair_cells(pair)
        shown = [plain(who), f"{chance} {_small('[' + interval.replace(' to ', ', ') + ']')}", _signed(difference), plain(ahead)]
        body.append([f"\\textbf{{{shown[0]}}}", *shown[1:], adjusted] if pair.wins else [*shown, adjusted])
    caption = (
        "P: the chance that a run of the first is better than one of the second, with its interval at the level at which Holm's "
        "method tests the pair; mean difference with its 95% interval. Bold: an adjusted p of at most 0.05."
    )
    header = ["Pair", "$P$", "Difference", "Seeds ahead", "$p$ (Holm)"]
    return _table(caption, "pairs", "lllrr", header, body)


def _winner(found: Comparison) -> str | None:
    """Whoever beats all others, by the rule of the report."""
    for label in found.labels:
        if found.pairs and sum(pair.wins and pair.ours == label for pair in found.pairs) == len(found.labels) - 1:
            return label
    return None


def _estimate(found: Estimate) -> str:
    value, _, interval = estimate_text(found).partition(" ")
    return f"{_minus(value)} {_small(interval)}" if interval else _minus(value)


def _signed(text: str) -> str:
    value, _, interval = text.partition(" ")
    return f"{_minus(value)} {_small(interval)}"


def _small(interval: str) -> str:
    inner = ", ".join(_minus(end) for end in interval.strip("[]").split(", "))
    return f"{{\\footnotesize [{inner}]}}"


def _minus(number: str) -> str:
    """A sign as mathematics has it, not a hyphen."""
    return f"${number}$" if number[:1] in "+-" else number


def _table(caption: str, label: str, columns: str, header: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    place = "table*" if len(columns) > NARROW else "table"
    lines = [
        f"\\begin{{{place}}}[t]",
        "  \\centering",
        f"  \\caption{{{plain(caption)}}}",
        f"  \\label{{tab:comparison-{label}}}",
        "  \\small",
        f"  \\begin{{tabular}}{{{columns}}}",
        "    \\toprule",
        f"    {' & '.join(header)} \\\\",
        "    \\midrule",
        *(f"    {' & '.join(row)} \\\\" for row in body),
        "    \\bottomrule",
        "  \\end{tabular}",
        f"\\end{{{place}}}",
    ]
    return "\n".join(lines) + "\n"
