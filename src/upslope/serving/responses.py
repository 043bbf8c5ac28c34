"""What the server says: completions in OpenAI's shape, whole or piece by piece, with what training needs beside it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence

from upslope.plain_data import JsonDict
from upslope.policies.language_model import LanguageModel
from upslope.serving.jobs import RequestJob, RequestRow, TokenScore, Written
from upslope.serving.requests import BadRequest, CompletionRequest

UNFINISHED = "\ufffd"
"""What a decoder writes for a character of which not all bytes are there yet."""


class Writer:
    """Writes the answers to one request."""

    def __init__(self, asked: CompletionRequest, policy: LanguageModel, model: str, version: int, chat: bool):
        self.asked, self.policy, self.chat = asked, policy, chat
        kind, prefix = ("chat.completion", "chatcmpl") if chat else ("text_completion", "cmpl")
        self.head = {"id": f"{prefix}-{secrets.token_hex(12)}", "created": int(time.time()), "model": model}
        self.kind, self.version = kind, version

    def whole(self, job: RequestJob) -> JsonDict:
        """The answer once it is finished."""
        choices = []
        for number, row in enumerate(job.rows):
            text = self._echoed(number) + row.text
            said = {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
            record = self._record(row, 0, len(row.tokens)) if self.asked.logprobs else None
            if row.scored is not None:
                record = self._scored(row, row.scored, text)
            choices.append({"index": number, **said, "logprobs": record, "finish_reason": row.finish, **self._further(row, 0)})
        usage = self._usage(job.rows)
        return {**self.head, "object": self.kind, "choices": choices, "usage": usage, "weights_version": self.version}

    def pieces(self, job: RequestJob, latest: Callable[[], Written]) -> Iterator[JsonDict]:
        """The answer as it is written: what is new of every row whenever there is news."""
        if self.chat:
            for number in range(len(job.rows)):
                yield self._piece(number, {"delta": {"role": "assistant", "content": ""}})
        sent = [(0, 0)] * len(job.rows)
        over = [False] * len(job.rows)
        going = True
        while going:
            told = latest()
            going = told.going
            for number, row in enumerate(told.rows):
                words, tokens = sent[number]
                if over[number] or (row.finish is None and len(row.tokens) == tokens):
                    continue
                upto = len(row.text) if row.finish else self._safe(row.text)
                piece = row.text[words:upto]
                over[number] = row.finish is not None
                sent[number] = (max(upto, words), len(row.tokens))
                said = {"delta": {"content": piece}} if self.chat else {"text": piece}
                record = {"logprobs": self._record(row, tokens, len(row.tokens)) if self.asked.logprobs else None}
                yield self._piece(number, said | record | self._further(row, tokens), row.finish)
        if self.asked.usage:
            yield {**self.head, "object": self._chunk(), "choices": [], "usage": self._usage(job.rows)}

    def _safe(self, text: str) -> int:
        """How much of an unfinished text is certain: neither half a character nor what may become the text it ends at."""
        whole = text.rstrip(UNFINISHED)
        return max(len(whole) - max((len(stop) - 1 for stop in self.asked.stop), default=0), 0)

    def _piece(self, number: int, said: JsonDict, finish: str | None = None) -> JsonDict:
        choice = {"index": number, **said, "finish_reason": finish}
        return {**self.head, "object": self._chunk(), "choices": [choice]}

    def _chunk(self) -> str:
        return "chat.completion.chunk" if self.chat else self.kind

    def _further(self, row: RequestRow, first: int) -> JsonDict:
        """Our own fields: ids where they are asked for, entropies beside log-probabilities."""
        found: JsonDict = {}
        if self.asked.ids:
            found |= {"token_ids": row.tokens[first:]} | ({"prompt_token_ids": row.prompt} if first == 0 else {})
        return found | ({"entropy": row.entropy[first:]} if self.asked.logprobs else {})

    def _record(self, row: RequestRow, first: int, last: int) -> JsonDict:
        ids, logp = row.tokens[first:last], row.logp[first:last]
        words = [self._word(token) for token in ids]
        if self.chat:
            entries = [
                {"token": word, "logprob": value, "bytes": list(word.encode()), "top_logprobs": []}
                for word, value in zip(words, logp, strict=True)
            ]
            return {"content": entries, "refusal": None}
        offsets, place = [], len(self.policy.decode(row.tokens[:first]))
        for word in words:
            offsets.append(place)
            place += len(word)
        return {
            "tokens": [self._name(token) for token in ids],
            "token_logprobs": logp,
            "top_logprobs": None,
            "text_offset": offsets,
        }

    def _echoed(self, row: int) -> str:
        """The text that stands before a completion."""
        return self.asked.echo[row // self.asked.n] if self.asked.echo else ""

    def _scored(self, row: RequestRow, scored: list[TokenScore], text: str) -> JsonDict:
        """Prompt and completion, token by token; of the first token nothing is known, as nothing stands before it."""
        ids = row.prompt + row.tokens
        special = set(self.policy.tokenizer.all_special_ids)
        offsets, place = [], 0
        for token in ids:
            word = self._word(token)
            offsets.append(place)
            # Special tokens are not part of a text, unless a client has spelled them out.
            place += 0 if token in special and not text.startswith(word, place) else len(word)
        tops: list[dict[str, float] | None] = [None]
        for score in scored:
            found: dict[str, float] = {}
            for token, logp in score.top:
                found.setdefault(self._name(token), logp)  # likeliest first: of tokens that read alike the likeliest counts
            tops.append(found)
        logps = [None, *(score.logp for score in scored)]
        return {"tokens": [self._name(t) for t in ids], "token_logprobs": logps, "top_logprobs": tops, "text_offset": offsets}

    def _word(self, token: int) -> str:
        return self.policy.tokenizer.decode([token])

    def _name(self, token: int) -> str:
        return f"token_id:{token}" if self.asked.spelled else self._word(token)

    def _usage(self, rows: Sequence[RequestRow]) -> dict[str, int]:
        asked = sum(map(len, self.asked.prompts))
        written = sum(len(row.tokens) for row in rows)
        return {"prompt_tokens": asked, "completion_tokens": written, "total_tokens": asked + written}


def error_body(wrong: BadRequest) -> JsonDict:
    """An error in OpenAI's shape."""
    kind = "invalid_request_error" if wrong.status < 500 else "server_error"
    return {"error": {"message": str(wrong), "type": kind, "param": wrong.param, "code": wrong.code}}
