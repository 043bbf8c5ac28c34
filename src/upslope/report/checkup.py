"""A trained run looked at closely: scores with intervals, and its answers or an episode to judge by eye."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from upslope.errors import UserError
from upslope.plain_data import JsonDict
from upslope.policies.reward_runs import refuse_reward_model
from upslope.report.curves import sparkline
from upslope.report.describe import table
from upslope.run import Run, load_components
from upslope.runtime.settings import Settings
from upslope.runtime.statistics import bootstrap_interval
from upslope.runtime.threads import torch_threads
from upslope.setting_up import Components
from upslope.setting_up.evaluating import ranked

if TYPE_CHECKING:
    from upslope.rollout.evaluation import Answerer
    from upslope.tasks.gym import GymTask

EPISODE_SEED = 20_000


@dataclass(frozen=True)
class EvaluationRequest:
    """What to measure; ``None`` is as the run itself was evaluated."""

    k: int | None = None
    """pass@1 to pass@k, 16 if left out."""
    samples: int | None = None
    """Answers per problem, k if left out. More make the estimate steadier."""
    problems: int | None = None
    """Problems or episodes."""
    temperature: float | None = None
    engine: str | None = None
    """The address of a server that answers in the run's place."""


def is_control(run: Run) -> bool:
    """Whether the run's task is an environment."""
    return bool(run.table["domain"] == "control")


def evaluate(run: Run, asked: EvaluationRequest) -> JsonDict:
    """The run's last checkpoint on held-out problems or episodes, as plain data."""
    if is_control(run):
        for name in ("k", "samples", "temperature", "engine"):
            if getattr(asked, name) is not None:
                raise UserError(f"--{name} goes with text; {run.table['task']} is an environment, which has a return.")
    elif asked.samples is not None and asked.samples < (asked.k or 1):
        raise UserError(f"--samples is {asked.samples}, and pass@{asked.k} needs at least {asked.k} answers per problem.")
    ranks = not is_control(run) and run.plan.method.scorer is not None
    for name in ("k", "samples", "temperature", "engine") if ranks else ():
        if getattr(asked, name) is not None:
            raise UserError(f"--{name} goes with answers; {run.path} trained a reward model, which ranks pairs. Leave it out.")
    about = {
        "run": str(run.path),
        "checkpoint": run.folder.latest().name,
        "method": run.plan.method.name,
        "task": run.plan.task_name,
    }
    if run.plan.settings.test_task:
        about["test_task"] = run.plan.settings.test_task
    with _progress() as progress:
        if asked.engine is not None:
            return about | {"engine": asked.engine} | _measure_served(run, asked, progress)
        with _loaded(run) as components:
            about["checkpoint"] = (run.checkpoint or run.folder.latest()).name
            measure = _measure_control if is_control(run) else _measure_ranking if ranks else _measure_policy
            return about | measure(components, asked, progress)


def _measure_policy(components: Components, asked: EvaluationRequest, progress: Callable[..., None]) -> JsonDict:
    from upslope.rollout.engines.torch_engine import TorchEngine
    from upslope.rollout.evaluation import answers_of

    policy, settings = components.policy, components.settings
    return _measure_text(components.task, answers_of(TorchEngine(policy, settings.speculate), policy), settings, asked, progress)


def _measure_ranking(components: Any, asked: EvaluationRequest, progress: Callable[..., None]) -> JsonDict:
    """Of a reward model."""
    found = ranked(components, asked.problems, progress)
    return {"pairs": found["problems"], "preferred": {name: found[name] for name in ("score", "low", "high")}}


def _measure_served(run: Run, asked: EvaluationRequest, progress: Callable[..., None]) -> JsonDict:
    """What a server answers to the run's problems. Nothing of the run is loaded but its task and how it puts a problem."""
    from upslope.policies.loading import config_in, tokenizer_in
    from upslope.policies.tokenization import PromptFormat
    from upslope.rewards import load_rewards
    from upslope.rewards.programs import settle_sandbox
    from upslope.rollout.engines.server_answers import ServerAnswers
    from upslope.rollout.prompt_lengths import cut_prompts, fit_prompts
    from upslope.tasks import load_task

    plan, form = run.plan, PromptFormat.parse(run.plan.settings.system, run.plan.settings.template)
    given = plan.objects
    reward = given.reward or load_rewards(plan.reward)
    settle_sandbox(reward, plan.settings.sandbox, now=False)
    task: Any = load_task(
        plan.task if given.task is None else given.task,
        reward=reward,
        test_data=plan.test_data or None,
        columns=plan.settings.columns,
    )
    tokenizer, config, settings = tokenizer_in(run.folder.latest()), config_in(run.folder.latest()), plan.settings
    fitted = fit_prompts(
        task, tokenizer, config, name=plan.model, max_tokens=settings.max_tokens or task.max_tokens, long=settings.long, form=form
    )
    answer = ServerAnswers(asked.engine or "", chat=bool(tokenizer.chat_template), form=form)
    return _measure_text(fitted.task, cut_prompts(answer, tokenizer, fitted.limit, form), settings, asked, progress)


def _measure_text(
    task: Any, answer: Answerer, settings: Settings, asked: EvaluationRequest, progress: Callable[..., None]
) -> JsonDict:
    from upslope.rollout.evaluation import evaluate_answers

    problems, tokens = asked.problems or settings.eval_problems or 100, settings.max_tokens or task.max_tokens
    k = asked.k or min(16, asked.samples or 16)
    samples, temperature = asked.samples or k, settings.temperature if asked.temperature is None else asked.temperature
    if temperature == 0 and samples > 1:
        raise UserError(f"--temperature 0 gives {samples} times the same answer; pass@{k} needs it above 0.")
    greedy = evaluate_answers(task, answer, problems=problems, max_tokens=tokens, stop=settings.stops, progress=progress)
    drawn = evaluate_answers(task, answer, problems=problems, max_tokens=tokens, samples=samples,
                             temperature=temperature, stop=settings.stops, progress=progress)  # fmt: skip
    if asked.engine is not None and samples > 1 and all(len(set(said)) == 1 for said in drawn.responses):
        print(f"upslope: {asked.engine} gave the same answer {samples} times to every problem. Does it heed the temperature?",
              file=sys.stderr)  # fmt: skip
    chances = {}
    for each in _powers(k):
        value, (low, high) = drawn.pass_at(each)
        chances[f"pass@{each}"] = {"score": value, "low": low, "high": high}
    low, high = greedy.interval()
    apart = greedy.by_category()
    return {
        "problems": len(greedy.problems),
        "samples": samples,
        "temperature": temperature,
        "greedy": {"score": greedy.accuracy, "low": low, "high": high},
        **chances,
        **({"categories": [{"category": name, "greedy": score} for name, score in apart.items()]} if apart else {}),
    }


def _measure_control(components: Components, asked: EvaluationRequest, progress: Callable[..., None]) -> JsonDict:
    from upslope.rollout.environments import evaluate_control

    episodes = asked.problems or components.settings.eval_problems or 100
    returns = evaluate_control(
        components.test_task, components.policy, components.rollout.state(), episodes=episodes, seed=EPISODE_SEED,
        progress=lambda done, *_: progress(done, episodes),
    )  # fmt: skip
    low, high = bootstrap_interval(returns)
    found = {"score": float(np.mean(returns)), "low": low, "high": high}
    return {
        "episodes": episodes,
        "mean return": found,
        "worst": min(returns),
        "best": max(returns),
        "spread": float(np.std(returns)),
    }


def evaluation_text(found: JsonDict) -> str:
    """What `evaluate` found, for people."""
    who = f"{found['engine']} in place of {found['run']}" if "engine" in found else f"{found['run']} at {found['checkpoint']}"
    where = f", judged in {found['test_task']}" if "test_task" in found else ""
    head = f"{found['method']} on {found['task']}{where}, {who}; 95% intervals over "
    scores = [(name, value) for name, value in found.items() if isinstance(value, dict)]
    if "episodes" in found:
        ((name, value),) = scores
        rest = f"best {found['best']:.1f}, worst {found['worst']:.1f}, spread {found['spread']:.1f}"
        line = f"{name}  {value['score']:.1f}  [{value['low']:.1f}, {value['high']:.1f}]"
        return f"{head}{found['episodes']} episodes\n{line}  {rest}"
    if "pairs" in found:
        ((name, value),) = scores
        line = f"{name}  {value['score']:.3f}  [{value['low']:.3f}, {value['high']:.3f}]  ranked right, the chosen answer first"
        return f"{head}{found['pairs']} held-out pairs\n{line}"
    how = {"greedy": "one greedy answer each"}
    drawn = f"{found['samples']} answer{'s' if found['samples'] > 1 else ''} each at temperature {found['temperature']:g}"
    rows = [(name, f"{v['score']:.3f}", f"[{v['low']:.3f}, {v['high']:.3f}]", how.get(name, drawn)) for name, v in scores]
    apart = [f"\ngreedy on {each['category']}: {each['greedy']:.3f}" for each in found.get("categories", ())]
    return f"{head}{found['problems']} held-out problems\n" + table(rows[1:], rows[0]) + "".join(apart)


# -- trying it out ---------------------------------------------------------------------------------------------------------


class Speaker:
    """The trained model, ready to answer."""

    def __init__(self, run: Run, temperature: float = 0.0, seed: int = 0):
        refuse_reward_model(run.path, f"upslope try {run.path}")
        self.run, self.temperature, self.seed, self.asked = run, temperature, seed, 0
        with _loaded(run) as components:
            self.components = components

    def answer(self, prompt: str) -> str:
        """Its answer to a problem of one's own."""
        from upslope.rollout.engines.torch_engine import TorchEngine
        from upslope.rollout.text_rows import sampled_ids
        from upslope.runtime.seeding import uniforms
        from upslope.types import Sampling

        policy, settings, tokens = self.components.policy, self.components.settings, self._tokens()
        self.asked += 1
        sampling = Sampling(max_tokens=tokens, temperature=self.temperature, stop=settings.stops)
        numbers = uniforms((1, tokens), self.seed, "try", self.asked)
        with _loaded(self.run):
            completions = TorchEngine(policy, settings.speculate).generate([policy.encode(prompt)], 1, sampling, numbers)
        return str(policy.decode(sampled_ids(completions)[0]))

    def examples(self, problems: int) -> str:
        """Its answers to some held-out problems, and whether they are right."""
        from upslope.rollout.engines.torch_engine import TorchEngine
        from upslope.rollout.evaluation import EVALUATION_SEED, evaluate_text

        with _loaded(self.run) as components:
            found = evaluate_text(
                components.task, components.policy, problems=problems, max_tokens=self._tokens(), temperature=self.temperature,
                stop=components.settings.stops, seed=EVALUATION_SEED + self.seed,
                engine=TorchEngine(components.policy, components.settings.speculate),
            )  # fmt: skip
        lines = []
        for problem, (said,), (right,) in zip(found.problems, found.responses, found.correct, strict=True):
            verdict = "right" if right else f"wrong; {problem.answer!r} is right" if problem.answer else "wrong"
            if "\n" in problem.prompt or len(problem.prompt) > 60:
                lines.append(f"{problem.prompt}\n  -> {said!r}  {verdict}\n")
            else:
                lines.append(f"{problem.prompt}  ->  {said!r}  {verdict}")
        return "\n".join([*lines, f"{sum(map(sum, found.correct))} of {len(lines)} right, on held-out problems"])

    def _tokens(self) -> int:
        return int(self.components.settings.max_tokens or self.components.task.max_tokens)


def episode(run: Run, seed: int = 0, task: GymTask | None = None, watch: Callable[[Any], None] | None = None) -> str:
    """Plays an episode and says how it went.

    Args:
        task: The run's own, made to be looked at.
        watch: As in `upslope.rollout.recorded_episode.play`.
    """
    from upslope.rollout.recorded_episode import play
    from upslope.runtime.seeding import mix

    with _loaded(run) as components:
        start = mix(EPISODE_SEED, "try", seed) >> 32
        played = play(task or components.test_task, components.policy, components.rollout.observations, start, watch)
    rewards, ends = played.rewards, {"terminated": "ended", "truncated": "reached its time limit", "unfinished": "was still going"}
    level = "".join(f", {name} {value}" for name, value in played.level.items())
    total = f"return {sum(rewards):.1f} in {len(rewards)} steps{level}; the episode {ends[played.ended]}"
    return f"{total}\nreward  {sparkline(rewards, 60)}  from {min(rewards):.3g} to {max(rewards):.3g}"


def watch_episode(run: Run, seed: int = 0) -> str:
    """The same in a window."""
    with _loaded(run) as components:
        return episode(run, seed, components.test_task.shown("human"))


@contextmanager
def _loaded(run: Run) -> Iterator[Components]:
    """The run's task, policy and rollout, with its number of threads as long as they are used."""
    with torch_threads(run.plan.settings.threads or 1):
        if run.components is None:
            run.components = load_components(run)
        yield run.components


def _powers(k: int) -> list[int]:
    """1, 2, 4, ... and k itself."""
    return sorted({*(2**i for i in range(k.bit_length())), k})


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error while it is a terminal, gone when it is done."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("evaluating"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("evaluating", total=None)
        yield lambda done, of: bar.update(task, completed=done, total=of)
