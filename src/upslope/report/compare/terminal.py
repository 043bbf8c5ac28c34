"""A comparison as text for the terminal: the answer, the scores, the pairs, and what happened on the way."""

from __future__ import annotations

from collections.abc import Sequence

from upslope.report.compare.learned import Learned, signed
from upslope.report.compare.measuring import Comparison, Efficiency, Estimate, Reached
from upslope.report.compare.sampling import PROBLEMS
from upslope.report.compare.verdict import Pair
from upslope.report.curves import number
from upslope.report.describe import table


def text(found: Comparison) -> str:
    """All of it, to be printed."""
    blocks = [found.finding, *_bullets(found.sentences), f"  {found.conditions}", "", _scores(found), "", _learned(found)]
    if found.pairs:
        blocks += ["", _pairs(found.pairs)]
    for task in found.tasks:
        on = f" on {task}" if len(found.tasks) > 1 else ""
        blocks += ["", f"on the way{on}", _diagnostics(found, task)]
    blocks += ["", *(f"note: {note}" for note in (*found.notes, *(f"{failure}" for failure in found.failures)))]
    return "\n".join(blocks).rstrip()


def _bullets(sentences: Sequence[str]) -> list[str]:
    return [f"  {sentence}" for sentence in sentences]


def _scores(found: Comparison) -> str:
    header = ["method", "runs", *(_score_title(found, task) for task in found.tasks)]
    header += ["all tasks"] if len(found.tasks) > 1 else []
    header += [reached_title(found.efficiency[task], task if len(found.tasks) > 1 else "") for task in found.tasks]
    header += [f"pass@{int(lines[0].x[-1])}" for lines in found.passes.values()]
    rows = []
    for each in found.standings:
        row = [each.label, str(sum(len(some.seeds) for some in each.tasks.values()))]
        row += [estimate_text(each.tasks[task].score) if task in each.tasks else "-" for task in found.tasks]
        row += [estimate_text(each.score)] if len(found.tasks) > 1 else []
        row += [reached_text(find_reached(found.efficiency[task], each.label)) for task in found.tasks]
        for lines in found.passes.values():
            line = next((one for one in lines if one.label == each.label), None)
            row.append(number(line.middle[-1]) if line else "-")
        rows.append(row)
    return table(rows, header)


LEARNED_RULE = (
    "A method has learned where the 95% interval of its mean change lies above 0: over seeds, and never narrower than what the "
    "problems or episodes of the evaluations leave open."
)
NO_THRESHOLD = "There are no steps to a score where no method has learned: every such score would be had before the first step."
SAMPLED = (
    f"Accuracy is of the likeliest answer to each problem, pass@k of answers that were sampled, to at most {PROBLEMS} problems: "
    "pass@1 is mostly below the accuracy."
)
LEARNED_HEADER = ("start to end", "start", "end", "change [95%]", "runs that rose", "result")


def learned_cells(found: Comparison, each: Learned) -> list[str]:
    """The columns of a method's end against its start."""
    who = f"{each.label}, {each.task}" if len(found.tasks) > 1 else each.label
    change = f"{signed(each.change)} [{signed(each.low)}, {signed(each.high)}]"
    return [who, number(each.before), number(each.after), change, f"{each.rose} of {each.runs}", each.outcome]


def _learned(found: Comparison) -> str:
    return table([learned_cells(found, each) for each in found.learned], LEARNED_HEADER)


def _score_title(found: Comparison, task: str) -> str:
    return f"{found.score_name[task]} on {task}" if len(found.tasks) > 1 else f"final {found.score_name[task]}"


def reached_title(efficiency: Efficiency, task: str = "") -> str:
    if efficiency.threshold is None:
        return f"steps to a score{f' on {task}' if task else ''}"
    return f"steps to {number(efficiency.threshold)}{f' on {task}' if task else ''}"


def find_reached(efficiency: Efficiency, label: str) -> Reached | None:
    return next((each for each in efficiency.methods if each.label == label), None)


def reached_text(found: Reached | None) -> str:
    """``30 (5 of 5)``, or that too few got there."""
    if found is None:
        return "-"
    return f"{'not yet' if found.steps is None else f'{found.steps:g}'} ({found.reached} of {found.of})"


def estimate_text(found: Estimate) -> str:
    """``0.93 [0.90, 0.95]``."""
    digits = 3 if abs(found.value) < 10 else 1
    if found.low is None or found.high is None:
        return f"{found.value:.{digits}f}"
    return f"{found.value:.{digits}f} [{found.low:.{digits}f}, {found.high:.{digits}f}]"


def pair_cells(pair: Pair) -> list[str]:
    """The columns of a pair: who, P, interval, difference, seeds, p, result."""
    digits = 3 if abs(pair.difference) < 10 else 1
    change = f"{pair.difference:+.{digits}f} [{pair.difference_low:+.{digits}f}, {pair.difference_high:+.{digits}f}]"
    ahead = "-" if pair.ahead is None else f"{pair.ahead} of {pair.of}"
    result = f"{pair.ours} wins" if pair.wins else "not told apart"
    chance, interval = f"{pair.chance:.2f}", f"{pair.low:.2f} to {pair.high:.2f}"
    return [f"{pair.ours} over {pair.theirs}", chance, interval, change, ahead, f"{pair.adjusted:.3f}", result]


PAIR_HEADER = ("pair", "P", "interval", "difference [95%]", "seeds ahead", "p (Holm)", "result")


def _pairs(pairs: Sequence[Pair]) -> str:
    return table([pair_cells(pair) for pair in pairs], PAIR_HEADER)


def _diagnostics(found: Comparison, task: str) -> str:
    rows = [
        [each.title.lower(), *(diagnostic_text(each.values.get(label)) for label in found.labels), f"({each.when})"]
        for each in found.diagnostics[task]
    ]
    return table(rows, ["", *found.labels, ""])


def diagnostic_text(value: float | None) -> str:
    return "-" if value is None else number(value)
