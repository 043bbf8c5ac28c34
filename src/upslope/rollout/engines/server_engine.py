"""Rollouts from a server that speaks OpenAI's protocol: ours (``upslope serve``), vLLM's, any that gives ids and log-probabilities.

Training needs to know which ids were drawn and how likely each was in the distribution it was drawn from. A server is asked for
both before anything is trained, and one that keeps either to itself is refused: it can still serve evaluation (`server_answers`).
"""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from upslope.errors import UserError
from upslope.plain_data import JsonDict
from upslope.policies.adapters import folded
from upslope.policies.language_model import LanguageModel
from upslope.rollout.engine_gap import WORST, gap_metrics, untruncated
from upslope.rollout.engines.external import Recorded, as_completions, cut_at_stops, ended, seed_of
from upslope.runtime.http_client import Client, ServerError, server_address
from upslope.runtime.seeding import uniforms as draw_uniforms
from upslope.types import Completions, Finish, Metrics, Sampling, samples_each

OURS = "upslope"
"""What our own server says of its models under ``owned_by``."""
PROBE_TOKENS = 4
FIRST_TOKENS = 32
"""Tokens of the first completion a server is asked for: enough for the odd ones that some servers leave out."""
CERTAIN = 0.15
"""Mean log-probability, at the most, of draws that a setting has made certain: in half precision a few are ties between two."""
SAME_WEIGHTS = 0.1
"""Mean gap between a server's log-probabilities and the policy's above which it cannot hold the weights it was sent; bfloat16
against float32 stays well below."""


@dataclass(frozen=True)
class Served:
    """What is known of a server."""

    model: str
    ours: bool
    """It takes weights, lists of prompts with the numbers to draw with, and gives entropies."""
    takes_n: bool = True
    """It answers ``n`` with that many completions; one that does not is asked several times."""
    entropy: bool = False
    checked: frozenset[str] = frozenset()
    """The settings of sampling that were seen to act, and to be in the log-probabilities."""


class _Question(NamedTuple):
    """One request: the rows of one or several prompts."""

    prompts: list[list[int]]
    n: int
    limit: int
    numbers: Tensor
    rows: list[int]


class ServerEngine:
    """Samples on a server.

    Our own server draws with the numbers it is given and takes the weights after every step: a run through it is the run without
    it, to rounding. Others draw with seeds. A server that takes no weights goes on with those it has: the recorded
    log-probabilities are still those of the distribution sampled from, so ratios against ``behavior`` are right, and the gap to
    the policy is a metric.

    Args:
        url: ``http://host:port``, with or without ``/v1``.
        policy: What is trained; its tokenizer must be the served model's.
        model: Which of the server's models; left out, its only one or the one behind ``#`` in the address.
        api_key: Left out, what the environment holds under ``UPSLOPE_API_KEY``.
        parallel: Requests under way at once.
    """

    def __init__(self, url: str, policy: LanguageModel, model: str | None = None, api_key: str | None = None, parallel: int = 16):
        address = server_address(url)
        self.url, self.policy, self.parallel = url, policy, parallel
        self.client = Client.at(address.base, api_key)
        self.wanted = model or address.model
        self._served: Served | None = None
        self._fresh = False
        self._told: Metrics = {}
        self._warned: set[str] = set()

    # -- what the server can do ------------------------------------------------------------------------------------------

    @property
    def served(self) -> Served:
        if self._served is None:
            self._served = self._met()
        return self._served

    @property
    def follows(self) -> bool:
        """Whether the server samples with the policy's own weights."""
        return self.served.ours

    @property
    def gives_entropy(self) -> bool:
        return self.served.entropy

    def check(self, sampling: Sampling) -> None:
        """Refuses a server that cannot be trained from with this sampling.

        A setting the server ignores, or leaves out of its log-probabilities, would spoil every ratio unseen. So each one in use is
        turned up until the draw is certain: the recorded log-probabilities must then be zero.
        """
        for setting, certain in _certainties(sampling).items():
            if setting in self.served.checked:
                continue
            value, rows = getattr(certain, setting), self._probe_rows(certain)
            logp = [each for row in rows for each in row.logp]
            if logp and -sum(logp) / len(logp) > CERTAIN:
                raise UserError(
                    f"{self.url} gives log-probabilities of {sum(logp) / len(logp):.2f} with {setting}={value}, where every draw "
                    f"is certain: it ignores {setting} or records log-probabilities without it. Leave "
                    f"--{setting.replace('_', '-')} out, or start the server so that it records those of the distribution "
                    "sampled from (vLLM: --logprobs-mode processed_logprobs)."
                )
            self._served = dataclasses.replace(self.served, checked=self.served.checked | {setting})
        if not self.follows:
            self._warn(
                f"{self.url} takes no weights: samples come from those it has, not from the policy as it learns. "
                "Recorded log-probabilities are of the distribution sampled from; the metric engine_gap shows how far it is."
            )

    def _met(self) -> Served:
        """Asks the server what it serves, then for one tiny completion with all that training needs."""
        model = self.client.choose(self.wanted)
        served = Served(model, any(entry.get("owned_by") == OURS for entry in self.client.models() if entry.get("id") == model))
        try:
            question = self._probe_question(2, FIRST_TOKENS)
            answer = self.client.post("/completions", self._body(served, question, Sampling(FIRST_TOKENS)))
        except ServerError as refusal:
            if refusal.status in (0, 401, 403):
                raise
            raise self._unfit(
                self._lacking(model), f" It refused to be asked for them ({refusal.status}: {refusal.said})."
            ) from None
        rows = self._rows(answer, FIRST_TOKENS)
        return dataclasses.replace(served, takes_n=len(rows) == 2, entropy=all(row.entropy is not None for row in rows))

    def _lacking(self, model: str) -> list[str]:
        """What a server that refused the whole request leaves out of a plain one with log-probabilities."""
        body = {"prompt": "1", "max_tokens": PROBE_TOKENS, "logprobs": 1} | ({"model": model} if model else {})
        try:
            choice = self.client.post("/completions", body)["choices"][0]
        except (ServerError, KeyError, IndexError, TypeError):
            return list(NEEDED)
        return [name for name, find in NEEDED.items() if find(choice) is None] or ["token_ids"]

    def _unfit(self, lacking: Sequence[str], why: str = "") -> UserError:
        return UserError(
            f"{self.url} cannot be trained from: its completions lack {' and '.join(lacking)} of sampled tokens.{why} "
            f"It can still serve evaluation: upslope eval RUN --engine {self.url}"
        )

    def _probe_question(self, n: int, limit: int) -> _Question:
        # Ids no text begins with: a trained model is unlikely to be sure of what follows them.
        size = self.policy.model.config.get_text_config().vocab_size
        prompt = [1 + (7 * place) % max(size - 1, 1) for place in range(1, 5)]
        return _Question([prompt], n, limit, draw_uniforms((n, limit), 0, "probe"), list(range(n)))

    def _probe_rows(self, sampling: Sampling) -> list[Recorded]:
        question = self._probe_question(4, PROBE_TOKENS)
        return self.ask(question.prompts, question.n, sampling, question.numbers)

    def probe(self, prompts: Sequence[list[int]], sampling: Sampling) -> float:
        """The largest difference between the server's log-probabilities of what it samples now and the policy's own of the same.

        Anything above rounding means that the two sides do not hold the same model, or that one of them is wrong.
        """
        if not untruncated(sampling):
            raise UserError("a probe needs every token to be possible: leave top_k, top_p and min_p out, the temperature above 0.")
        numbers = draw_uniforms((len(prompts), sampling.max_tokens), 1, "probe")
        rows = self.ask(prompts, 1, sampling, numbers)
        return gap_metrics(self.policy, prompts, 1, sampling, as_completions(rows, self.policy)).get(WORST, 0.0)

    # -- an engine -------------------------------------------------------------------------------------------------------

    def sync(self, policy: LanguageModel) -> None:
        """Sends the weights, if the server takes them."""
        self.policy = policy
        if self.follows:
            self.client.put("/upslope/weights", weight_bytes(policy))
        self._fresh = True

    def generate(
        self, prompts: Sequence[list[int]], n: int | Sequence[int], sampling: Sampling, uniforms: Tensor,
        limits: Sequence[int] | None = None, keep: bool = False,
    ) -> Completions:  # fmt: skip
        """As `upslope.types.Engine.generate`; only our own server draws with ``uniforms`` themselves."""
        if not self._fresh:
            self.sync(self.policy)
        rows = self.ask(prompts, n, sampling, uniforms, limits)
        self._measure(prompts, n, sampling, rows)
        return as_completions(cut_at_stops(rows, self.policy, sampling), self.policy)

    def metrics(self) -> Metrics:
        """Of the last call: how far the server's log-probabilities are from the policy's (``engine_gap``)."""
        return self._told

    def ask(
        self, prompts: Sequence[list[int]], n: int | Sequence[int], sampling: Sampling, uniforms: Tensor,
        limits: Sequence[int] | None = None,
    ) -> list[Recorded]:  # fmt: skip
        """What the server makes of the prompts, ``n`` rows each (or as many as ``n`` says of each), in their order."""
        each = samples_each(n, len(prompts))
        limits = [sampling.max_tokens] * len(prompts) if limits is None else [min(own, sampling.max_tokens) for own in limits]
        questions = list(self._questions(list(prompts), each, uniforms, limits))
        rows: dict[int, Recorded] = {}
        with ThreadPoolExecutor(max_workers=min(self.parallel, len(questions))) as pool:
            for question, found in zip(questions, pool.map(lambda each: self._answered(each, sampling), questions), strict=True):
                rows.update(zip(question.rows, found, strict=True))
        return [rows[row] for row in range(sum(each))]

    def _questions(self, prompts: list[list[int]], each: list[int], numbers: Tensor, limits: Sequence[int]) -> Iterable[_Question]:
        """Our own server takes all prompts of one limit and number together; others one prompt, or one row, at a time."""
        begin = [0, *itertools.accumulate(each)]
        if self.served.ours:
            for limit, n in sorted(set(zip(limits, each, strict=True))):
                which = [place for place in range(len(prompts)) if (limits[place], each[place]) == (limit, n)]
                rows = [begin[place] + sample for place in which for sample in range(n)]
                yield _Question([prompts[place] for place in which], n, limit, numbers[rows, :limit], rows)
            return
        for place, prompt in enumerate(prompts):
            at_once = each[place] if self.served.takes_n else 1
            for first in range(begin[place], begin[place + 1], at_once):
                rows = list(range(first, first + at_once))
                yield _Question([prompt], at_once, limits[place], numbers[rows], rows)

    def _answered(self, question: _Question, sampling: Sampling) -> list[Recorded]:
        answer = self.client.post("/completions", self._body(self.served, question, sampling))
        rows = self._rows(answer, question.limit)
        if len(rows) != len(question.rows):
            raise UserError(f"{self.url} gave {len(rows)} completions where {len(question.rows)} were asked for.")
        return rows

    def _body(self, served: Served, question: _Question, sampling: Sampling) -> JsonDict:
        """The request. Everything that shapes the distribution is said: servers have defaults of their own for what is left out."""
        body: JsonDict = {
            "prompt": question.prompts if served.ours else question.prompts[0],
            "n": question.n,
            "max_tokens": question.limit,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k or -1,
            "min_p": sampling.min_p,
            "repetition_penalty": 1.0,
            "logprobs": 1,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            "stop_token_ids": sorted(self.policy.stop_ids),
            "seed": seed_of(question.numbers),
        }
        body |= {"model": served.model} if served.model else {}
        return body | ({"uniforms": question.numbers.tolist()} if served.ours else {})

    # -- reading answers -------------------------------------------------------------------------------------------------

    def _rows(self, answer: object, limit: int) -> list[Recorded]:
        choices = answer.get("choices") if isinstance(answer, dict) else None
        if not isinstance(choices, list) or not choices:
            raise UserError(f"{self.url} gave no 'choices'. Is it an OpenAI-compatible server?")
        return [self._row(choice, limit) for choice in sorted(choices, key=lambda choice: choice.get("index", 0))]

    def _row(self, choice: JsonDict, limit: int) -> Recorded:
        tokens, logp = _token_ids(choice), _logprobs(choice)
        if tokens is None or logp is None:
            raise self._unfit([name for name, find in NEEDED.items() if find(choice) is None])
        if len(tokens) != len(logp):
            raise UserError(f"{self.url} gave {len(tokens)} token ids and {len(logp)} log-probabilities for one completion.")
        reason = choice.get("finish_reason")
        if reason not in ("stop", "length"):
            raise UserError(f"{self.url} ended a completion with {reason!r}; only 'stop' and 'length' can be learned from.")
        length = ended(tokens, self.policy.stop_ids)
        finish: Finish = "stop" if length and tokens[length - 1] in self.policy.stop_ids else "length"
        # Every decision must be there: which tokens are missing, or before which, nobody could tell afterwards.
        if finish == "length" and reason == "stop":
            raise self._unfit(["token_ids"], " The token that ended a completion, itself a decision, is not among them.")
        if finish == "length" and length != limit:
            raise self._unfit(["token_ids"], f" A completion of {limit} tokens came with {length} of them.")
        entropy = choice.get("entropy")
        return Recorded(tokens[:length], logp[:length], None if entropy is None else list(entropy)[:length], finish)

    def _measure(self, prompts: Sequence[list[int]], n: int | Sequence[int], sampling: Sampling, rows: Sequence[Recorded]) -> None:
        self._told = gap_metrics(self.policy, prompts, n, sampling, as_completions(rows, self.policy))
        if self.follows and self._told.get("engine_gap", 0.0) > SAME_WEIGHTS:
            raise UserError(
                f"{self.url} was sent the weights, and its log-probabilities are still {self._told['engine_gap']:.2f} from the "
                "policy's on average. Is another run using the same server?"
            )

    def _warn(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            print(f"upslope: {message}", file=sys.stderr, flush=True)


def weight_bytes(policy: LanguageModel) -> bytes:
    """The model's weights as safetensors, tied ones once: what our own server takes."""
    from safetensors.torch import save

    return save({name: value.contiguous() for name, value in folded(policy.model).items()})


def _certainties(sampling: Sampling) -> dict[str, Sampling]:
    """For every setting in use, a sampling in which it leaves only the likeliest token."""
    used = {
        "temperature": (sampling.temperature not in (0, 1), Sampling(PROBE_TOKENS, temperature=1e-3)),
        "top_k": (sampling.top_k > 0, Sampling(PROBE_TOKENS, top_k=1)),
        "top_p": (sampling.top_p < 1, Sampling(PROBE_TOKENS, top_p=1e-6)),
        "min_p": (sampling.min_p > 0, Sampling(PROBE_TOKENS, min_p=1.0)),
    }
    return {name: certain for name, (on, certain) in used.items() if on}


def _token_ids(choice: JsonDict) -> list[int] | None:
    """The sampled ids out of the places where servers put them; none if there are none."""
    record = choice.get("logprobs") or {}
    spelled = record.get("tokens") or []
    if isinstance(choice.get("token_ids"), list):
        return [int(token) for token in choice["token_ids"]]
    if spelled and all(str(token).startswith("token_id:") for token in spelled):
        return [int(token.removeprefix("token_id:")) for token in spelled]
    return None


def _logprobs(choice: JsonDict) -> list[float] | None:
    """Those of the sampled ids, in the shape of completions or of chat (llama.cpp has that in both); none if there are none."""
    record = choice.get("logprobs") or {}
    found = record.get("token_logprobs")
    if found is None and isinstance(record.get("content"), list):
        found = [entry.get("logprob") for entry in record["content"]]
    if found is None or any(value is None for value in found):
        return None
    return [float(value) for value in found]


NEEDED: dict[str, Callable[[JsonDict], Any]] = {"token_ids": _token_ids, "logprobs": _logprobs}
"""What a completion must hold to be learned from, and where to find it."""
