"""``upslope tasks NAME --show 3``: some problems of a task as a model would read them, before anything is trained on them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from upslope.errors import UserError
from upslope.plain_data import JsonDict
from upslope.tasks import Problem, TextTask, domain_of, load_task
from upslope.tasks.data_task import DataTask
from upslope.tasks.kinds import kind_of
from upslope.tasks.text import SPLITS

SHOWN = 3


@dataclass(frozen=True)
class ShowRequest:
    """What to show of a task, and for whom; the fields are those of ``upslope train``."""

    task: str
    count: int = SHOWN
    model: str = ""
    """Whose chat template and tokens to show; none: only the problems."""
    test_data: str = ""
    columns: str = ""
    system: str = ""
    template: str = ""


def task_record(asked: ShowRequest) -> JsonDict:
    """Splits, remarks and some problems of a task, as plain data.

    Raises:
        UserError: if there is no such task, or it is an environment.
    """
    if domain_of(asked.task) == "control":
        raise UserError(f"--show shows problems in text; {asked.task} is an environment. 'upslope train ppo --task {asked.task}'.")
    for flag, given in (("--system", asked.system), ("--template", asked.template)):
        if given and not asked.model:
            raise UserError(f"{flag} is for a model's chat template: say which, --model FOLDER.")
    # Nothing is scored here, so any reward will do.
    reward = _no_reward if kind_of(asked.task) in ("data", "mixed") else None
    task: Any = load_task(asked.task, reward=reward, test_data=asked.test_data or None, columns=asked.columns)
    read = _reader(asked)
    splits = {split: len(task.division.problems[split]) for split in SPLITS} if isinstance(task, DataTask) else {}
    return {
        "task": asked.task,
        "splits": splits,
        "remarks": list(getattr(task, "remarks", ())),
        "model": asked.model,
        "gives": sorted(task.gives()),
        "problems": [_problem_record(task, problem) | read(problem) for problem in _some(task, asked.count)],
    }


def task_text(record: JsonDict) -> str:
    """The same for people."""
    counts = ", ".join(f"{count} {split}" for split, count in record["splits"].items()) or "made as they are asked for"
    lines = [f"{record['task']}: {counts}", *record["remarks"]]
    for number, each in enumerate(record["problems"], start=1):
        lines += ["", f"problem {number}, of train"]
        if "read" in each:
            lines += [f"  {Path(record['model']).name} reads {each['tokens']} tokens:", _indented(each["read"])]
        else:
            lines += ["  prompt:", _indented(each["prompt"])]
        lines += [f"  answer: {each['answer']!r}" if each["answer"] else "  no answer"]
        lines += [f"  {name}: {each[name]}" for name in ("category", "difficulty") if each[name] not in ("", None)]
        lines += [f"  hints: {' | '.join(each['hints'])}"] if each["hints"] else []
        lines += [f"  documents: {len(each['documents'])}"] if each["documents"] else []
        further = [name for name in each["info"] if name not in ("category", "difficulty", "hints", "documents")]
        lines += [f"  for the reward: {', '.join(further)}"] if further else []
    return "\n".join(lines)


def _some(task: TextTask, count: int) -> list[Problem]:
    if isinstance(task, DataTask):
        return task.division.problems["train"][:count]
    return task.sample(count, "train", np.random.default_rng(0))


def _problem_record(task: TextTask, problem: Problem) -> JsonDict:
    return {
        "prompt": problem.prompt, "messages": list(problem.messages), "answer": problem.answer, "solution": problem.solution,
        "hints": list(task.hints(problem)), "documents": list(problem.documents), "category": problem.category,
        "difficulty": None if math.isnan(problem.difficulty) else problem.difficulty, "info": dict(problem.info),
    }  # fmt: skip


def _reader(asked: ShowRequest) -> Any:
    """What the model makes of a problem: all that it reads, special tokens too."""
    if not asked.model:
        return lambda problem: {}
    from upslope.policies import load_tokenizer
    from upslope.policies.tokenization import PromptFormat, encoded

    tokenizer, form = load_tokenizer(asked.model), PromptFormat.parse(asked.system, asked.template)
    form.check(tokenizer, asked.model)

    def read(problem: Problem) -> JsonDict:
        (ids,) = encoded(tokenizer, [problem.model_input], form)
        text = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return {"read": text, "tokens": len(ids)}

    return read


def _indented(text: str) -> str:
    return "\n".join(f"  | {line}" for line in text.split("\n"))


def _no_reward(prompts: list[str], responses: list[str], answers: list[str]) -> list[float]:
    return [0.0] * len(responses)
