"""Answers in text from any OpenAI-compatible server, for evaluation: it needs neither token ids nor log-probabilities.

Only what every such server takes is sent: no ``n``, no ``logprobs``, a request for each answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from torch import Tensor

from upslope.errors import UserError
from upslope.plain_data import JsonDict, Prompt
from upslope.policies.tokenization import PLAIN, PromptFormat, plain_text
from upslope.rollout.engines.external import seed_of
from upslope.runtime.http_client import Client, ServerError, server_address
from upslope.types import Sampling

MISSING = (404, 405)
"""How servers answer at an address where there is nothing."""


class ServerAnswers:
    """Asks a server for answers.

    Args:
        url: ``http://host:port``, with or without ``/v1``; a model of several is named behind ``#``.
        chat: Whether problems are put as a user's message, as they are to a model with a chat template; else as text to continue.
            Where the server has only the other way, that one is taken.
        form: How prompts are put to a chat model.
        api_key: Left out, what the environment holds under ``UPSLOPE_API_KEY``.
        parallel: Requests under way at once.
    """

    def __init__(self, url: str, chat: bool, form: PromptFormat = PLAIN, api_key: str | None = None, parallel: int = 8):
        address = server_address(url)
        self.url, self.chat, self.form, self.parallel = url, chat, form, parallel
        self.client = Client.at(address.base, api_key)
        self.model = self.client.choose(address.model)
        self._settled = False

    def __call__(self, prompts: Sequence[Prompt], samples: int, sampling: Sampling, uniforms: Tensor) -> tuple[list[str], int]:
        """An answer per row, ``samples`` of each prompt side by side, and how many tokens they took (0 where it does not say)."""
        asked = [(prompt, seed_of(uniforms[row])) for row, prompt in enumerate(p for p in prompts for _ in range(samples))]
        found: list[tuple[str, int]] = []
        if not self._settled:
            found, asked = [self._first(asked[0][0], asked[0][1], sampling)], asked[1:]
        with ThreadPoolExecutor(max_workers=self.parallel) as pool:
            found += pool.map(lambda each: self._answer(each[0], each[1], sampling), asked)
        return [_cut(text, sampling.stop) for text, _ in found], sum(tokens for _, tokens in found)

    def _first(self, prompt: Prompt, seed: int, sampling: Sampling) -> tuple[str, int]:
        """The first answer also shows which of the two ways the server has."""
        self._settled = True
        try:
            return self._answer(prompt, seed, sampling)
        except ServerError as refusal:
            if refusal.status not in MISSING:
                raise
            self.chat = not self.chat
            return self._answer(prompt, seed, sampling)

    def _answer(self, prompt: Prompt, seed: int, sampling: Sampling) -> tuple[str, int]:
        body: JsonDict = {"max_tokens": sampling.max_tokens, "temperature": sampling.temperature}
        body |= {"model": self.model} if self.model else {}
        body |= {"seed": seed, "top_p": sampling.top_p} if sampling.temperature > 0 else {}
        body |= {"messages": self.form.messages(prompt)} if self.chat else {"prompt": plain_text(prompt)}
        # vLLM's name for it, which others have taken over.
        body |= {"chat_template_kwargs": dict(self.form.template)} if self.chat and self.form.template else {}
        answer = self.client.post("/chat/completions" if self.chat else "/completions", body)
        try:
            choice = answer["choices"][0]
            text = choice["message"]["content"] if self.chat else choice["text"]
        except (KeyError, IndexError, TypeError):
            raise UserError(f"{self.url} gave no 'choices' with an answer. Is it an OpenAI-compatible server?") from None
        usage = answer.get("usage") or {}
        return text or "", int(usage.get("completion_tokens") or 0)


def _cut(text: str, stop: tuple[str, ...]) -> str:
    """The text up to and with the first of the stop texts to be complete in it."""
    ends = [text.index(each) + len(each) for each in stop if each in text]
    return text[: min(ends)] if ends else text
