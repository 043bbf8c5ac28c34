"""The best of several answers, as a reward or a reward model ranks them: how often it is right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from upslope.errors import UserError
from upslope.plain_data import JsonDict
from upslope.policies.reward_runs import refuse_reward_model
from upslope.report.describe import table
from upslope.rewards import load_reward
from upslope.rewards.model_reward import reward_models
from upslope.run import Run, load_components
from upslope.runtime.statistics import bootstrap_interval, share_interval
from upslope.runtime.threads import torch_threads
from upslope.setting_up import Components
from upslope.tasks.text import NoReward, call_reward


@dataclass(frozen=True)
class BestOfRequest:
    """How many answers to rank, and by what; ``None`` is as the run itself was evaluated.

    Fields:
        answers: to each problem.
        by: what ranks them: ``rm:RUN``, or any reward as for `train`.
    """

    answers: int
    by: str
    problems: int | None = None
    temperature: float | None = None


def evaluate_best_of(run: Run, asked: BestOfRequest) -> JsonDict:
    """How good the answer is that is ranked first, beside that of any answer and that of the best there was; as plain data."""
    if run.table["domain"] == "control":
        raise UserError(f"--best-of goes with text; {run.table['task']} is an environment. Leave it out.")
    refuse_reward_model(run.path, f"upslope eval {run.path} --best-of")
    if asked.answers < 2:
        raise UserError(f"--best-of is {asked.answers}: with a single answer there is nothing to rank. Give 2 or more.")
    reward = load_reward(asked.by)
    with torch_threads(run.plan.settings.threads or 1):
        components = load_components(run)
        for model in reward_models(reward):
            model.device = components.settings.device
            model.check_format(components.policy.prompt_format)
        about = {
            "run": str(run.path), "checkpoint": (run.checkpoint or run.folder.latest()).name, "method": run.plan.method.name,
            "task": run.plan.task_name, "by": asked.by,
        }  # fmt: skip
        return about | _measured(components, asked, reward)


def _measured(components: Components, asked: BestOfRequest, reward: Any) -> JsonDict:
    from upslope.rollout.evaluation import evaluate_text

    task, settings = components.task, components.settings
    if isinstance(getattr(task, "reward", None), NoReward):
        raise UserError(f"{task.name} has preferences alone: nothing says which answer is right. 'upslope eval RUN --against start "
                        f"--judge {asked.by.removeprefix('rm:')}' compares answers.")  # fmt: skip
    temperature = settings.temperature if asked.temperature is None else asked.temperature
    if temperature == 0:
        raise UserError(f"--temperature 0 gives {asked.answers} times the same answer; --best-of needs it above 0.")
    drawn = evaluate_text(
        task, components.policy, problems=asked.problems or settings.eval_problems or 100, samples=asked.answers,
        max_tokens=settings.max_tokens or task.max_tokens, temperature=temperature, stop=settings.stops,
    )  # fmt: skip
    repeated = [problem for problem in drawn.problems for _ in range(asked.answers)]
    ranked, _ = call_reward(reward, repeated, [said for row in drawn.responses for said in row], task.name)
    score = np.array(ranked).reshape(len(drawn.problems), asked.answers)
    paid = components.score_name == "reward"
    worth = np.array(drawn.reward if paid else drawn.correct, dtype=float)
    first = score == score.max(1, keepdims=True)
    chosen = (worth * first).sum(1) / first.sum(1)  # of several that are ranked first any may be taken
    each = {"mean reward" if paid else "pass@1": worth.mean(1), f"best of {asked.answers}": chosen,
            f"highest of {asked.answers}" if paid else f"pass@{asked.answers}": worth.max(1)}  # fmt: skip
    intervals = {name: (bootstrap_interval if paid else share_interval)(values.tolist()) for name, values in each.items()}
    scores = {name: {"score": float(values.mean()), "low": intervals[name][0], "high": intervals[name][1]}
              for name, values in each.items()}  # fmt: skip
    return {"problems": len(drawn.problems), "samples": asked.answers, "temperature": temperature, **scores}


def best_of_text(found: JsonDict) -> str:
    """What `evaluate_best_of` found, for people."""
    head = f"{found['method']} on {found['task']}, {found['run']} at {found['checkpoint']}; 95% intervals over "
    how = ("any answer", f"the one that {found['by']} ranks first", "the best there was")
    scores = [(name, value) for name, value in found.items() if isinstance(value, dict)]
    rows = [
        (name, f"{v['score']:.3f}", f"[{v['low']:.3f}, {v['high']:.3f}]", told)
        for (name, v), told in zip(scores, how, strict=True)
    ]  # fmt: skip
    drawn = f"{found['samples']} answers each at temperature {found['temperature']:g}"
    return f"{head}{found['problems']} held-out problems, {drawn}\n" + table(rows[1:], rows[0])
