"""Who judges: a run of ours, a server, or the policy itself, by what ``--judge`` says."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import torch

from upslope.errors import UserError
from upslope.policies.adapter_files import holds_model
from upslope.policies.language_model import LanguageModel
from upslope.policies.reward_runs import RewardRun, is_reward_model
from upslope.policies.trained import is_run, trained_weights
from upslope.rewards.judging import QUESTION, Judge, Question
from upslope.rollout.engines.server_answers import ServerAnswers
from upslope.rollout.engines.torch_engine import TorchEngine
from upslope.rollout.ranking import RankingJudge
from upslope.rollout.text_rows import sampled_ids
from upslope.runtime.http_client import PASSING, ServerError
from upslope.runtime.seeding import uniforms
from upslope.types import Sampling

POLICY = "policy"
TOKENS = 16
"""The most tokens of a verdict."""
SECONDS, TRIES = 60.0, 2
"""How long a server may take for one verdict, and how often it is asked for it."""
PARALLEL = 8
GREEDY = Sampling(max_tokens=TOKENS, temperature=0.0)
TRIAL = QUESTION.format(problem="1+1=", first="2", second="3")
NOT_HERE = (400, 404, 405, 422)
"""How servers refuse a conversation, where they only continue text, or their model has no template for it."""


def make_judge(spec: str, most_failures: float, device: str = "cpu") -> Judge:
    """The judge that a text names, tried.

    Args:
        spec: ``policy``, the address of an OpenAI-compatible server, or the folder of a run, of a checkpoint or of a model. A run
            that trained a reward model ranks answers by it.

    Raises:
        UserError: if there is no such judge, it cannot be reached, or it answers no questions.
    """
    if spec == POLICY:
        return Judge(POLICY, None, most_failures)
    if "://" not in spec and is_reward_model(spec):
        return RankingJudge(spec, RewardRun.parse(spec).load(device))
    return Judge(spec, ServerJudge(spec) if "://" in spec else ModelJudge(_judging_model(spec, device)), most_failures)


def _judging_model(spec: str, device: str) -> LanguageModel:
    from upslope.rollout.parity_check import load_checked

    folder = Path(spec).expanduser()
    if is_run(spec):
        try:
            trained_weights(spec)
        except UserError as problem:
            told = str(problem).removeprefix(f"--model {spec} is ")
            raise UserError(f"--judge {spec}: {told} Give a run of text, or the address of a server.") from None
    elif not holds_model(folder):
        raise UserError(
            f"--judge is {spec!r}, and there is no run, checkpoint or model in {str(folder.absolute())!r}. Give such a folder, the "
            "address of a server such as http://127.0.0.1:8000, or policy."
        )
    return load_checked(spec, 0).to(device)


class ModelJudge:
    """Asks a model of ours, for its likeliest answer."""

    def __init__(self, policy: LanguageModel):
        self.policy, self.engine = policy, TorchEngine(policy)
        self.longest = int(getattr(policy.model.config, "max_position_embeddings", 0) or 0)

    def __call__(self, asked: Sequence[Question]) -> list[str | None]:
        prompts = self.policy.encode_all([question.prompt for question in asked])
        found: list[str | None] = [""] * len(asked)  # what leaves no room for a verdict gets none that could be read
        fitting = [place for place, ids in enumerate(prompts) if not self.longest or len(ids) + TOKENS <= self.longest]
        if fitting:
            numbers = uniforms((len(fitting), TOKENS), 0, "judge")
            done = self.engine.generate([prompts[place] for place in fitting], 1, GREEDY, numbers)
            for place, text in zip(fitting, self.policy.decode_all(sampled_ids(done)), strict=True):
                found[place] = text
        return found


class ServerJudge:
    """Asks a server, several questions at a time."""

    def __init__(self, url: str):
        self.url = url
        self.answers = self._reached(url)

    def __call__(self, asked: Sequence[Question]) -> list[str | None]:
        with ThreadPoolExecutor(max_workers=PARALLEL) as pool:
            return list(pool.map(lambda question: self._answer(question.prompt), asked))

    def _answer(self, prompt: str) -> str | None:
        try:
            return self._said(self.answers, prompt)
        except ServerError as problem:
            if problem.status and problem.status not in PASSING:
                raise
            return None
        except UserError:  # it answered, and not as such servers do
            return ""

    @staticmethod
    def _said(answers: ServerAnswers, prompt: str) -> str:
        (text,), _ = answers([prompt], 1, GREEDY, torch.zeros(1, TOKENS))
        return text

    def _reached(self, url: str) -> ServerAnswers:
        """The server, asked once: as in a conversation, or where it has none, as a text to continue."""
        for chat in (True, False):
            try:
                answers = ServerAnswers(url, chat)
                answers.client = replace(answers.client, timeout=SECONDS, tries=TRIES)
                self._said(answers, TRIAL)
                return answers
            except ServerError as problem:
                if not chat or problem.status not in NOT_HERE:
                    raise UserError(f"--judge {url}: {problem}") from None
        raise AssertionError("one of both ways is the last")
