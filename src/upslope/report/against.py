"""One run against another: how often its answers are preferred, on the same held-out problems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from upslope.errors import UserError
from upslope.plain_data import JsonDict
from upslope.policies.reward_runs import refuse_reward_model
from upslope.rewards.judging import FAILURES, Judge
from upslope.rewards.preferences import Contest, compared_by_task
from upslope.run import Run, load_components
from upslope.runtime.statistics import share_interval
from upslope.runtime.threads import torch_threads
from upslope.setting_up import Components
from upslope.tasks.text import NoReward, TextTask

START = "start"


@dataclass(frozen=True)
class AgainstRequest:
    """Whom to compare with, and how; ``None`` is as the run itself was evaluated.

    Fields:
        other: ``start``, the policy as the run began, or the folder of another run.
        judge: who decides, as for `train`; empty: the task, where it compares answers, else its reward.
        samples: answers to each problem, the first compared with the other's first and so on.
    """

    other: str
    judge: str = ""
    problems: int | None = None
    samples: int = 1
    temperature: float | None = None


def evaluate_against(run: Run, asked: AgainstRequest, trust: bool = False) -> JsonDict:
    """The run's win rate over another policy, as plain data: 1/2 where both are alike."""
    if run.table["domain"] == "control":
        told = f"--against goes with text; {run.table['task']} is an environment"
        raise UserError(f"{told}. 'upslope compare RUN RUN2' has the returns.")
    for path in (run.path, *(() if asked.other == START else (asked.other,))):
        refuse_reward_model(path, f"upslope eval {run.path} --against {asked.other}")
    other = None if asked.other == START else Run(_opened(asked.other), trust=trust)
    if other is not None and other.table["domain"] == "control":
        raise UserError(f"--against {asked.other} is a run in an environment, which answers no text. Give one of text.")
    if other is None and not run.folder.start.is_dir():
        told = f"{run.path} kept no start, as nothing in it was compared with one (--watch-kl true does)"
        raise UserError(f"{told}. Give --against RUN2.")
    judge = _judge(asked.judge)
    with torch_threads(run.plan.settings.threads or 1):
        ours = load_components(run)
        if judge is None and isinstance(getattr(ours.task, "reward", None), NoReward):
            raise UserError(f"{run.path} has no reward that could say which answer is better. Give --judge RUN or URL.")
        about = {
            "run": str(run.path), "checkpoint": (run.checkpoint or run.folder.latest()).name, "against": asked.other,
            "method": run.plan.method.name, "task": run.plan.task_name,
        }  # fmt: skip
        theirs = load_components(other).policy if other is not None else None
        return about | _measured(ours, theirs, run, asked, judge)


def _opened(path: str) -> Any:
    from upslope.runtime.run_folder import RunFolder

    return RunFolder.open(path)


def _judge(spec: str) -> Judge | None:
    from upslope.rollout.judges import POLICY, make_judge

    if spec == POLICY:
        raise UserError("--judge policy: a run would judge its own answers. Give another run, or the address of a server.")
    return make_judge(spec, 1.0) if spec else None


def _measured(ours: Components, theirs: Any, run: Run, asked: AgainstRequest, judge: Judge | None) -> JsonDict:
    task, settings = ours.task, ours.settings
    who = judge.name if judge is not None else "the task" if task.compares else "the reward"
    problems, tokens = asked.problems or settings.eval_problems or 100, settings.max_tokens or task.max_tokens
    temperature = settings.temperature if asked.temperature is None else asked.temperature
    if temperature == 0 and asked.samples > 1:
        raise UserError(f"--temperature 0 gives {asked.samples} times the same answer. Leave --samples out, or give a higher one.")

    def start() -> Any:
        """The start takes the place of the weights, which have answered by then."""
        ours.policy.load(run.folder.reader(run.folder.start))
        return ours.policy

    if task.choices is not None and judge is None and task.compares:
        return {"by": who} | _exact(task, ours.policy, theirs or start, problems, tokens, temperature)
    said = [_answers(ours, policy, problems, tokens, asked.samples, temperature) for policy in (ours.policy, theirs or start)]
    chances, counts = _chances(task, said, judge)
    low, high = share_interval([float(np.mean(row)) for row in chances])
    each = np.concatenate(chances)
    found: JsonDict = {
        "by": who, "problems": len(chances), "samples": asked.samples, "temperature": temperature,
        "win_rate": {"score": float(np.mean([np.mean(row) for row in chances])), "low": low, "high": high},
        "won": int((each > 0.5).sum()), "even": int((each == 0.5).sum()), "lost": int((each < 0.5).sum()),
    }  # fmt: skip
    return found | {f"judge_{name}": count for name, count in counts.items()}


def _exact(task: TextTask, ours: Any, theirs: Any, problems: int, tokens: int, temperature: float) -> JsonDict:
    """Of a task with few answers, from both policies' chances of each; anything else that is said is one more answer."""
    from upslope.rollout.evaluation import EVALUATION_SEED, answer_chances, distinct_problems

    choices = task.choices
    assert choices is not None
    chosen = distinct_problems(task, problems, "test", EVALUATION_SEED)
    played = []
    for policy in (ours, theirs):
        speaker = policy() if callable(policy) else policy
        found = answer_chances(speaker, chosen, choices.texts, max_tokens=tokens, temperature=temperature)
        played.append(np.concatenate([found, np.clip(1 - found.sum(1, keepdims=True), 0, 1)], 1))
    rates = [
        float(one @ compared_by_task(task, Contest(problem, (*choices.texts, ""))) @ other)
        for problem, one, other in zip(chosen, *played, strict=True)
    ]
    rate = float(np.mean(rates))
    return {"problems": len(chosen), "exact": True, "win_rate": {"score": rate, "low": rate, "high": rate}}


def _answers(ours: Components, policy: Any, problems: int, tokens: int, samples: int, temperature: float) -> Any:
    from upslope.rollout.evaluation import evaluate_text

    speaker = policy() if callable(policy) else policy
    return evaluate_text(
        ours.task, speaker, problems=problems, max_tokens=tokens, samples=samples, temperature=temperature, stop=ours.settings.stops
    )


def _chances(task: TextTask, said: Sequence[Any], judge: Judge | None) -> tuple[list[np.ndarray], dict[str, int]]:
    """The chance that each of our answers beats the other's, problem by problem, and how often a judge failed."""
    ours, theirs = said
    if judge is None and not task.compares:
        gaps = [np.array(one) - np.array(other) for one, other in zip(ours.reward, theirs.reward, strict=True)]
        return [np.where(gap > 0, 1.0, np.where(gap < 0, 0.0, 0.5)) for gap in gaps], {}
    contests = [
        [Contest(problem, pair) for pair in zip(one, other, strict=True)]
        for problem, one, other in zip(ours.problems, ours.responses, theirs.responses, strict=True)
    ]
    flat = [contest for row in contests for contest in row]
    matrices, counts = judge.compare(flat) if judge is not None else ([compared_by_task(task, each) for each in flat], {})
    won = iter([float(matrix[0, 1]) for matrix in matrices])
    return [np.array([next(won) for _ in row]) for row in contests], counts


def against_text(found: JsonDict) -> str:
    """What `evaluate_against` found, for people."""
    rate, at = found["win_rate"], f"{found['run']} at {found['checkpoint']}"
    head = f"{found['method']} on {found['task']}, {at}, against {found['against']}; {found['by']} decides"
    if found.get("exact"):
        return f"{head}\nwin rate  {rate['score']:.3f}  from the chances of all answers"
    failed = ", ".join(f"{found[f'judge_{kind}']} {kind}" for kind in FAILURES if found.get(f"judge_{kind}"))
    counts = f"won {found['won']}, even {found['even']}, lost {found['lost']}"
    line = f"win rate  {rate['score']:.3f}  [{rate['low']:.3f}, {rate['high']:.3f}]  {counts}"
    told = f"; of {found['judge_pairs']} verdicts {failed}" if failed else ""
    return f"{head}; 95% interval over {found['problems']} held-out problems\n{line}{told}"
