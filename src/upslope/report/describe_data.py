"""Datasets in words: what was made, what was measured, and which there are."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

from upslope.experience import Dataset
from upslope.experience.dataset import dataset_folders, read_card
from upslope.experience.measures import Description
from upslope.experience.minari_files import MINARI, local_minari
from upslope.plain_data import JsonDict
from upslope.report.describe import table


def made_text(dataset: Dataset) -> str:
    """What was made, in a line or two."""
    card, mean = dataset.card, float(dataset.episodes.returns.mean())
    score = dataset.normalised(mean)
    scored = "" if math.isnan(score) else f", score {score:.1f}"
    size = f"{card.episodes:,} episode{'s' if card.episodes != 1 else ''}, {card.decisions:,} steps"
    lines = [f"{card.recipe} on {card.env}: {size}, mean return {_number(mean)}{scored}"]
    if card.reference_episodes:
        known = f"the expert {_number(card.expert)} (score 100)" if math.isfinite(card.expert) else "no expert is known"
        lines.append(
            f"random actions return {_number(card.random)} (score 0), {known}; over {card.reference_episodes} episodes each"
        )
    return "\n".join(lines)


def description_text(found: Description) -> str:
    """All that was measured, a line each: its name, its value, what it means."""
    about = [each for each in (found.env, found.recipe) if each]
    advice = found.advice
    rows = [*_count_rows(found), *_quality_rows(found), *_coverage_rows(found), *_neighbour_rows(found)]
    lines = [f"{found.name}{': ' if about else ''}{', '.join(about)}", table(rows, ("measure", "value", "meaning"))]
    return "\n\n".join([*lines, f"{advice.family}: try {', '.join(advice.methods)}\n  {advice.because}"])


def _count_rows(found: Description) -> list[tuple[str, str, str]]:
    ends = f"{found.terminated:,} terminated, {found.truncated:,} truncated{', 1 unfinished' if found.unfinished else ''}"
    lengths, returns = found.lengths, found.returns
    return [
        ("episodes", f"{found.episodes:,}", ends),
        ("decisions", f"{found.decisions:,}", f"{lengths['lowest']:.0f} to {lengths['highest']:.0f} an episode, "
         f"mean {lengths['mean']:.1f}"),
        ("return", _number(returns["mean"]), "mean; lowest, quartiles, highest: " + ", ".join(
            _number(returns[key]) for key in ("lowest", "quarter", "median", "three_quarters", "highest"))),
        ("zero rewards", f"{found.zero_rewards:.1%}", "of decisions pay exactly 0"),
    ]  # fmt: skip


def _quality_rows(found: Description) -> list[tuple[str, str, str]]:
    known = f"quality: random {_number(found.random)} is 0, expert {_number(found.expert)} is 1"
    unknown = "quality; needs the returns of random actions and of an expert, which the data do not name"
    return [("TQ", _number(found.tq), unknown if math.isnan(found.tq) else known)]


def _coverage_rows(found: Description) -> list[tuple[str, str, str]]:
    seen = found.coverage
    counted = "counted" if seen.exact else "estimated, to about 1%"
    measured = f"exploration: unique pairs over those of {seen.reference}"
    return [
        ("unique pairs", f"{seen.unique_pairs:,.0f}", f"of state and action, {counted}; {seen.share:.1%} of decisions"),
        (
            "SACo",
            _number(seen.saco),
            measured if seen.reference else "exploration; needs the experience of an online run: --reference",
        ),
    ]


def _neighbour_rows(found: Description) -> list[tuple[str, str, str]]:
    near = found.neighbourhoods
    among = f"neighbours of {near.states:,} states among {near.among:,} decisions"
    return [
        ("action variance", _number(near.action_variance), f"of actions in neighbouring states, 0 where they agree ({among})"),
        ("transition noise", _number(near.transition_noise), "share of a step's change that state and action do not explain"),
        ("state similarity", _number(near.state_similarity), "other decisions near a state, in all the data"),
    ]


def _number(value: float) -> str:
    """Four digits of a number; a dash where there is none."""
    if math.isnan(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


# -- which there are ---------------------------------------------------------------------------------------------------------------


def data_records() -> list[JsonDict]:
    """The datasets in ``data/``, and Minari's on this machine where it is installed."""
    keys = ("env", "recipe", "episodes", "decisions", "random", "expert", "digest")
    cards = [read_card(folder) for folder in dataset_folders()]
    folders = [{"name": folder.name, **{key: card.record()[key] for key in keys}}
               for folder, card in zip(dataset_folders(), cards, strict=True)]  # fmt: skip
    return [*folders, *_minari_records(dict.fromkeys(keys))]


def _minari_records(empty: JsonDict) -> list[JsonDict]:
    found = []
    for name, known in sorted(local_minari().items()):
        told = {"env": "", "recipe": str(known.get("algorithm_name") or ""), "episodes": int(known["total_episodes"])}
        found.append({"name": f"{MINARI}{name}", **empty, **told, "decisions": int(known["total_steps"])})
    return found


def data_table(records: Sequence[JsonDict]) -> str:
    """A line for each dataset."""
    if not records:
        print("upslope: no dataset in data/. 'upslope data make NAME --task gym:Pendulum-v1' makes one.", file=sys.stderr)
        return ""
    rows = [(each["name"], f"{each['episodes']:,}", f"{each['decisions']:,}", each["env"] or "-", each["recipe"] or "-")
            for each in records]  # fmt: skip
    return table(rows, ("name", "episodes", "decisions", "env", "recipe"))
