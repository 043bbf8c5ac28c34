"""Evaluations of a run on text: answers that are sampled and scored, answers that are chosen from a few, pairs that are ranked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from upslope.plain_data import JsonDict
from upslope.runtime.statistics import bootstrap_interval
from upslope.setting_up.base import Progress
from upslope.tasks.text import NoReward

if TYPE_CHECKING:
    from upslope.setting_up.text import TextComponents

PROBLEMS = 100
"""Held-out ones, unless told otherwise."""


def evaluated(made: TextComponents, progress: Progress | None = None) -> JsonDict:
    """What `upslope.setting_up.base.Components.evaluate` gives of a run on text."""
    from upslope.rollout.evaluation import evaluate_choices, evaluate_text

    settings, task, policy = made.settings, made.task, made.policy
    problems = settings.eval_problems or PROBLEMS
    if made.method.scorer is not None:
        return ranked(made, problems, progress)
    if task.choices is not None:  # judged by the policy's chance of each
        choices = evaluate_choices(task, policy, problems=problems, max_tokens=made.tokens, temperature=settings.temperature)
        return choices | {"reward": choices["score"]}
    engine = made.rollout.engine
    follows = getattr(engine, "follows", True)  # one that keeps other weights than the policy's cannot answer for it
    made.rollout.sync()
    apart: JsonDict = {}
    if made.pairs_judge:
        apart = _preferred(made, problems, progress)
        if isinstance(getattr(task, "reward", None), NoReward):
            return apart
        apart = {"preferred": apart["score"]}
    found = evaluate_text(
        task, policy, problems=problems, max_tokens=made.tokens, stop=settings.stops, engine=engine if follows else None,
        progress=progress,
    )  # fmt: skip
    reward = sum(map(sum, found.reward)) / len(found.problems)
    if made.score_name == "reward":
        low, high = bootstrap_interval([sum(row) / len(row) for row in found.reward])
        return {"score": reward, "low": low, "high": high, "problems": len(found.problems), "reward": reward, **apart}
    low, high = found.interval()
    apart |= {f"score_{name or 'other'}": score for name, score in found.by_category().items()}
    return {"score": found.accuracy, "low": low, "high": high, "problems": len(found.problems), "reward": reward, **apart}


def ranked(made: TextComponents, problems: int | None, progress: Progress | None = None) -> JsonDict:
    """Of a reward model: how often it ranks the chosen answers of held-out pairs first."""
    from upslope.policies.reward_model import RewardModel
    from upslope.rollout.ranking import evaluate_ranking

    assert made.method.scorer is not None
    head, kind = made.method.scorer
    model = RewardModel(made.policy.name, made.policy, head, kind.scores == "pairs")
    problems = problems or made.settings.eval_problems or PROBLEMS
    found = evaluate_ranking(made.task, model, problems=problems, progress=progress)
    low, high = found.interval()
    return {"score": found.preferred, "low": low, "high": high, "problems": len(found.wins), "preferred": found.preferred}


def _preferred(made: TextComponents, problems: int, progress: Progress | None) -> JsonDict:
    """How often the policy prefers the chosen answers of held-out pairs."""
    from upslope.rollout.pair_evaluation import evaluate_pairs

    found = evaluate_pairs(made.task, made.policy, problems=problems, progress=progress)
    low, high = found.interval()
    return {"score": found.preferred, "low": low, "high": high, "problems": len(found.wins)}
