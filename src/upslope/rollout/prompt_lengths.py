"""Prompt lengths in tokens, found out before the first step: one that does not fit would otherwise end a run after hours."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from upslope.errors import TaskError, UserError
from upslope.plain_data import Prompt
from upslope.policies.tokenization import PLAIN, Long, PromptFormat, PromptLimit, cut_to, encoded_lengths
from upslope.rollout.evaluation import Answerer
from upslope.runtime.slow_work import said_if_slow
from upslope.tasks.data_task import DataTask
from upslope.tasks.fitting import OnlyFitting
from upslope.tasks.mixed import MixedTask
from upslope.tasks.text import TextTask
from upslope.types import Sampling

AT_ONCE = 512
"""Prompts given to a tokenizer at once: enough for its threads, few enough to show how far it is."""
MARGIN = 64
"""Tokens that a chat template may put around a prompt, about: a text so near to the limit is measured."""
LONGEST = 4096
"""So many of the prompts with most characters are measured in any case: the memory of a step is foreseen from the longest."""

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Fitted:
    """A task whose prompts all fit, and what is known of their lengths."""

    task: TextTask
    limit: PromptLimit | None
    """None: the model takes texts of any length."""
    lengths: list[int] = field(default_factory=list)
    """Tokens of distinct prompts that may be asked, cut ones as they are cut, the longest among them (`LONGEST`); empty where they
    are made on the spot."""


def positions(config: Any) -> int | None:
    """How many tokens a text may have, if the model's config says so."""
    return getattr(config.get_text_config(), "max_position_embeddings", None) or None


def fit_prompts(
    task: TextTask, tokenizer: object, config: object, *, name: str, max_tokens: int, long: Long, form: PromptFormat = PLAIN,
    progress: Progress | None = None,
) -> Fitted:  # fmt: skip
    """The task with prompts that leave room for an answer, as ``long`` says.

    Args:
        config: of the model, whose positions are the limit.
        name: of the model, for messages.
        max_tokens: the longest answer.
        form: how prompts are put to the model.
        progress: told how many of how many prompts are done; None says so itself if it takes seconds.

    Raises:
        UserError: if a prompt is too long and ``long`` is ``"refuse"``, or nothing fits.
    """
    form.check(tokenizer, name)
    room = positions(config)
    if room is not None and room <= max_tokens:
        raise UserError(f"--max-tokens {max_tokens} leaves no room for a prompt: {name!r} has {room} positions. Give less.")
    limit = None if room is None else PromptLimit(room - max_tokens, long)
    if isinstance(task, MixedTask):
        fitted = [
            fit_prompts(part, tokenizer, config, name=name, max_tokens=max_tokens, long=long, form=form, progress=progress)
            for part in task.parts
        ]
        made_on_the_spot = any(not each.lengths for each in fitted)
        lengths = [] if made_on_the_spot else [length for each in fitted for length in each.lengths]
        return Fitted(MixedTask(tuple(each.task for each in fitted)), limit, lengths)
    if isinstance(task, DataTask):
        own = sum(row.problem.messages[0]["role"] == "system" for _, row in task.rows if row.problem.messages)
        if form.system and own:
            task = task.remarking(f"--system is left out of {own} rows that begin with a system message of their own.")
        measured = measured_prompts(task, tokenizer, limit, form, progress)
        return _fit_file(task, measured, limit, f"--max-tokens {max_tokens} leaves of the {room} positions of {name!r}")
    if limit is not None and long == "skip":

        def fits(prompts: Sequence[Prompt]) -> list[bool]:
            return [count <= limit.tokens for count in prompt_lengths(tokenizer, prompts, form)]

        return Fitted(OnlyFitting(task, fits), limit)
    return Fitted(task, limit)


def measured_prompts(
    task: DataTask, tokenizer: object, limit: PromptLimit | None, form: PromptFormat, progress: Progress | None
) -> dict[str, int]:
    """Tokens of prompts that may be asked, by their text: of all that might be longer than the limit, and of the longest."""
    asked = {problem.prompt: problem.model_input for problems in task.division.problems.values() for problem in problems}
    chosen = _worth_measuring(asked, tokenizer, limit, form)
    return dict(zip(chosen, prompt_lengths(tokenizer, [asked[text] for text in chosen], form, progress), strict=True))


def _worth_measuring(asked: Mapping[str, Prompt], tokenizer: object, limit: PromptLimit | None, form: PromptFormat) -> list[str]:
    """The prompts that might be longer than the limit, and the `LONGEST`, in their order.

    Every token of a plain ASCII text stands for a character of it or more, and normalising leaves such a text as it is: one with
    fewer characters than the limit fits, with what stands around a prompt. Should a tokenizer make more of it after all, it is
    still refused or cut where it is encoded (`tokenization.fitting`).
    """
    if len(asked) <= LONGEST:
        return list(asked)
    around = encoded_lengths(tokenizer, ["x"], form)[0]
    most = math.inf if limit is None else limit.tokens - around - MARGIN
    longest = set(heapq.nlargest(LONGEST, asked, key=len))
    return [
        text
        for text, prompt in asked.items()
        if text in longest or len(text) > most or not isinstance(prompt, str) or not text.isascii()
    ]


def _fit_file(task: DataTask, lengths: dict[str, int], limit: PromptLimit | None, room: str) -> Fitted:
    """The problems of a file, every one of which is known."""
    if limit is None:
        return Fitted(task, None, list(lengths.values()))
    long = {prompt for prompt, length in lengths.items() if length > limit.tokens}
    if not long:
        return Fitted(task, limit, list(lengths.values()))
    fitting = [length for length in lengths.values() if length <= limit.tokens]
    if limit.long == "skip":
        return Fitted(task.without(long, f"prompts of over {limit.tokens} tokens, all that {room}"), limit, fitting)
    where = [(path, place, prompt) for path, place, prompt in task.places() if prompt in long]
    if limit.long == "cut":
        cut = task.remarking(f"{_lines(len(where))} with prompts of over {limit.tokens} tokens: only their ends are read.")
        return Fitted(cut, limit, [*fitting, *[limit.tokens] * len(long)])
    path, place, prompt = where[0]
    others = len(where) - 1
    more = f" {others} more line{' has' if others == 1 else 's have'} too many." if others else ""
    raise TaskError(
        f"{path}, {place}: the prompt has {lengths[prompt]} tokens, and {room} only {limit.tokens}.{more} "
        "Give --long cut to read only the ends of such prompts, --long skip to leave the problems out, or a smaller --max-tokens."
    )


def prompt_lengths(
    tokenizer: object, prompts: Sequence[Prompt], form: PromptFormat = PLAIN, progress: Progress | None = None
) -> list[int]:
    """Tokens of each prompt, as a run would encode it."""
    found: list[int] = []
    many = progress is None and len(prompts) > AT_ONCE
    with said_if_slow(f"checking {len(prompts):,} prompts") if many else nullcontext():
        for begin in range(0, len(prompts), AT_ONCE):
            found += [max(1, length) for length in encoded_lengths(tokenizer, prompts[begin : begin + AT_ONCE], form)]
            if progress is not None:
                progress(len(found), len(prompts))
    return found


def cut_prompts(answer: Answerer, tokenizer: object, limit: PromptLimit | None, form: PromptFormat = PLAIN) -> Answerer:
    """Somebody who answers texts, given what a run would read of each."""
    if limit is None or limit.long != "cut":
        return answer
    tokens = limit.tokens

    def shortened(prompts: Sequence[Prompt], samples: int, sampling: Sampling, numbers: Tensor) -> tuple[list[str], int]:
        return answer([cut_to(tokenizer, prompt, tokens, form) for prompt in prompts], samples, sampling, numbers)

    return shortened


def _lines(count: int) -> str:
    return f"{count} line{'' if count == 1 else 's'}"


def check_written(task: TextTask, tokenizer: Any, config: object, *, name: str, form: PromptFormat = PLAIN) -> None:
    """Refuses a file in which an answer to learn from does not fit behind its prompt: what lies beyond would not be seen.

    A token is a byte or more, so only texts with more bytes than the model has positions are looked at.

    Args:
        name: of the model, for the message.

    Raises:
        TaskError: with the first such line and what to do.
    """
    room = positions(config)
    if room is None or not isinstance(task, DataTask):
        return
    for path, row in task.rows:
        problem = row.problem
        pair, wanted = problem.pair, problem.wanted
        texts = (*pair[0], *pair[1]) if pair else (wanted[0],) if wanted else (problem.solution,)
        if _most_bytes(problem.prompt) + max(map(_most_bytes, texts)) + MARGIN <= room:
            continue
        asked = prompt_lengths(tokenizer, [problem.model_input], form)[0]
        length = asked + 1 + max(len(tokenizer(text, add_special_tokens=False).input_ids) for text in texts)
        if length > room:
            raise TaskError(
                f"{path}, {row.place}: the prompt with its longest answer has {length} tokens, and {name!r} has {room} positions. "
                "Shorten or leave out such lines, or take a model with more."
            )


def _most_bytes(text: str) -> int:
    """At least as many as the text has in UTF-8, without encoding it."""
    return len(text) if text.isascii() else 4 * len(text)
