"""The torch engine: continues prompts with a language model and records how likely each token was when it was drawn.

A prompt is computed once however often it is continued, rows that have ended leave the batch, rows that wait take their places, and
every token is drawn by inverting the cumulative distribution at a number that belongs to its row and position: which rows are
still alive cannot change what a row draws.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from upslope.errors import UserError
from upslope.policies.forward.activation_cache import ActivationCache
from upslope.policies.forward.architecture import Architecture
from upslope.policies.language_model import LanguageModel
from upslope.rollout.decode.graph_stepper import GraphStepper, graphs_help
from upslope.rollout.decode.mixed import MixedModels, MixedStepper, MixedStream
from upslope.rollout.decode.pages import Seats, seats
from upslope.rollout.decode.plain import Stream, sample_stream
from upslope.rollout.decode.record import DecodeJob, Progress, Record, StopStrings
from upslope.rollout.decode.speculation import DraftSum, Speculate
from upslope.rollout.decode.speculative_stepper import SpeculativeStepper, drafting_with
from upslope.rollout.decode.stepper import Prompts, Stepper
from upslope.rollout.decode.weights import Weights
from upslope.rollout.engine_gap import SamplingPrecision, gap_metrics, mean_of
from upslope.rollout.engines.continuation import Continuation, sampling_mode
from upslope.types import Completions, Metrics, Sampling, Trajectories, samples_each

Speaker = LanguageModel | MixedModels
"""Who samples: the policy, a copy of it with other weights, or two of them together."""
DEAD_SHARE = 1 / 8
"""Slots are closed once this share of them is empty: moving rows copies their cache, leaving gaps computes them again."""


class TorchEngine:
    """Samples with the policy's own weights: they are read anew at each call, so it is never out of date.

    Args:
        policy: The language model to continue prompts with.
        speculate: How much rows are drafted for on a CPU (`upslope.rollout.decode.speculation`).
        precision: What it samples in. In ``fp8`` nothing is kept for learning, and `metrics` tells how far it is from the policy.
    """

    memory_bytes: int = 0
    """What prompts may take, and what rows may: more prompts are read in chunks, more rows wait. 0: a share of the device's."""
    row_bytes: int = 0
    """What rows may take, if that is not as much as prompts may."""
    max_rows: int = 1024
    """Rows continued at once; the others wait for a place."""
    paged: bool = True
    """Whether rows that would wait for memory share pages of it, where graphs are recorded (`upslope.rollout.decode.pages`)."""
    takes_speakers = True
    """Whether it can sample with other weights than the policy's: ``by`` of `generate`."""

    def __init__(self, policy: LanguageModel, speculate: Speculate = "off", precision: SamplingPrecision = "auto"):
        self.policy, self.speculate, self.in_eight_bits = policy, speculate, precision == "fp8"
        self._told: list[Metrics] = []
        self._weights: Weights | None = None
        self._several = False
        self._steppers: dict[int, Stepper] = {}
        self.drafts = DraftSum()
        """Of all calls of `generate` so far."""

    def sync(self, policy: LanguageModel) -> None:
        """Continue with this policy's weights from now on. What was kept of earlier calls is forgotten."""
        self.policy = policy
        policy.kept.forget()

    def generate(
        self,
        prompts: Sequence[list[int]],
        n: int | Sequence[int],
        sampling: Sampling,
        uniforms: Tensor,
        limits: Sequence[int] | None = None,
        keep: bool = False,
        by: Speaker | None = None,
    ) -> Completions:
        """Continues each prompt ``n`` times, or each as often as ``n`` says of it: see `upslope.types.Engine.generate`. ``keep`` is
        heeded if memory allows.

        Args:
            by: Copies of the policy with other weights, which sample in its place; nothing is kept of what they compute.

        Raises:
            UserError: if a prompt is empty or, with its completion, longer than the model's positions; or if the model
                no longer gives numbers.
        """
        call = self.begin(prompts, n, sampling, uniforms, limits, keep, by=by)
        while call.advance():
            pass
        self.drafts = self.drafts.with_those_of(call.drafts)
        done = call.completions()
        if self.in_eight_bits and by is None:
            self._told.append(gap_metrics(self.policy, prompts, n, sampling, done))
            done = replace(done, approximate=True)
        return done

    def metrics(self) -> Metrics:
        """Of the calls since it was asked: how far what was recorded is from the policy's own, where it samples in another
        precision."""
        told, self._told = mean_of(self._told), []
        return told

    def begin(
        self,
        prompts: Sequence[list[int]],
        n: int | Sequence[int],
        sampling: Sampling,
        uniforms: Tensor,
        limits: Sequence[int] | None = None,
        keep: bool = False,
        place: int = 0,
        by: Speaker | None = None,
    ) -> Continuation:
        """As `generate`, to be advanced by the caller: calls at different places can be under way at once, taking turns.

        Args:
            place: Where the call keeps its memory, which the next call at the same place takes over.
            by: Who samples in place of the policy. Such a call must end before the next one begins.
        """
        limits = [sampling.max_tokens] * len(prompts) if limits is None else [min(own, sampling.max_tokens) for own in limits]
        each = samples_each(n, len(prompts))
        self._refuse(prompts, each, sampling, uniforms, limits)
        device, rows = self.policy.device, len(uniforms)
        with sampling_mode():
            stops = torch.tensor(sorted(self.policy.stop_ids), dtype=torch.long, device=device)
            record = Record.blank(rows, sampling.max_tokens, self.policy.pad_id, device)
            room = torch.tensor(limits, device=device).repeat_interleave(torch.tensor(each, device=device))
            pad = self.policy.pad_id
            call = Continuation(DecodeJob(sampling, uniforms.to(device), stops, room, record, Progress.of(rows), pad=pad))
        keep = keep and by is None and not self.in_eight_bits
        call.steps = self._steps(call, prompts, each, keep, place, by or self.policy)
        return call

    def release(self, place: int) -> None:
        """Frees the memory that calls at this place have kept."""
        self._steppers.pop(place, None)

    def _steps(
        self, call: Continuation, prompts: Sequence[list[int]], each: list[int], keep: bool, place: int, by: Speaker
    ) -> Generator[None]:
        """The work of a call, a yield after every few tokens."""
        job, begin = call.job, [0, *itertools.accumulate(each)]
        chunks = [*self._chunks(prompts, each, job.sampling.max_tokens)]
        for first, last in chunks:
            rows = slice(begin[first], begin[last])
            stop = job.sampling.stop
            heard = StopStrings(stop, self.policy.decode, self.policy.pad_id) if stop else None
            record, progress = job.record.part(rows), job.progress.part(rows)
            part = DecodeJob(job.sampling, job.uniforms[rows], job.stops, job.limits[rows], record, progress, heard, job.pad)
            yield from self._continue(call, prompts[first:last], each[first:last], part, keep and len(chunks) == 1, place, by)
            call.stopped |= set() if heard is None else {rows.start + row for row in heard.rows}
        if not job.record.logp.isfinite().all():
            self._steppers.clear()  # what they keep may be no numbers either
            raise UserError(f"{self.policy.name!r} gives log-probabilities that are not numbers: its weights have blown up. "
                            "A smaller learning rate or a tighter gradient norm keeps them.")  # fmt: skip

    def _continue(
        self, call: Continuation, prompts: Sequence[list[int]], each: list[int], job: DecodeJob, keep: bool, place: int, by: Speaker
    ) -> Iterator[None]:
        """Continues the rows of some prompts until all have ended."""
        room, mixed = job.sampling.max_tokens, isinstance(by, MixedModels)
        body = by.first.body if isinstance(by, MixedModels) else by.body
        if body is None:
            stream = MixedStream(by, prompts, each, room) if isinstance(by, MixedModels) else Stream(by, prompts, each, room)
            yield from sample_stream(stream, job)
            return
        number: dict[tuple[int, ...], int] = {}
        owner = [number.setdefault(tuple(prompt), len(number)) for prompt, n in zip(prompts, each, strict=True) for _ in range(n)]
        places = self._seats(min(len(owner), self.max_rows), room, mixed)
        if keep:
            call.kept = self._kept(body, [len(prompt) - 1 for prompt in number], owner, room)
        stepper: Stepper
        if isinstance(by, MixedModels):
            stepper = MixedStepper(by, list(number), places.rows, room, job)
        else:
            stepper = self._ready(body, list(number), places, room, job, call.kept, place)
        call.stepper = stepper
        yield from _converse(stepper, torch.tensor(owner, device=self.policy.device))
        if isinstance(stepper, SpeculativeStepper):
            call.drafts = call.drafts.with_those_of(stepper.counts.sum)
        call.stepper = None

    def _kept(self, body: Architecture, lengths: list[int], owner: list[int], room: int) -> ActivationCache | None:
        """Where to keep what is computed, unless that is more than learning itself may take."""
        policy = self.policy
        if policy.recompute or not ActivationCache.serves(body):
            return None
        return policy.kept.begin(body, policy.compute_dtype, lengths, torch.tensor(owner), room, policy.slice_bytes // 2)

    def _ready(
        self, body: Architecture, prompts: list[tuple[int, ...]], places: Seats, room: int, job: DecodeJob | None = None,
        kept: ActivationCache | None = None, place: int = 0,
    ) -> Stepper:  # fmt: skip
        """A stepper with the weights of now that has read the prompts."""
        positions, dtype = max(map(len, prompts)) + room, self.policy.compute_dtype
        known = self._weights
        if known is None or not known.serves(body) or known.dtype != dtype or known.positions < positions:
            # Where several models speak in turns, one set of weights takes those of each: it cannot be the one that learns.
            self._several |= known is not None and known.body is not body
            self._weights = known = None  # their memory is free before others take some
            self._steppers.clear()
            fixed = graphs_help(body.head.weight.device) if self.in_eight_bits else None
            self._weights = known = Weights(body, positions, dtype, fixed, not self._several, self.in_eight_bits)
        else:
            known.refresh(body)
        read = Prompts(known, prompts, kept)
        stepper, drafts = self._steppers.pop(place, None), drafting_with(self.speculate, known)
        if stepper is None or stepper.drafting != drafts or not stepper.fits(read, places, room, job):
            stepper = None  # its memory is free before the new one takes some
            if graphs_help(known.device):
                stepper = GraphStepper(known, places, room)
            elif drafts is not None:
                stepper = SpeculativeStepper(known, places.rows, room, drafts)
            else:
                stepper = Stepper(known, places.rows, room)
        self._steppers[place] = stepper
        stepper.begin(read, job)
        return stepper

    def probe(self, rows: Trajectories) -> float:
        """The largest difference between this engine's log-probabilities of sampled tokens and the policy's own.

        The engine is made to say the recorded tokens one by one, through its cache. Anything above rounding means that the two
        sides do not hold the same model, or that one of them is wrong.
        """
        assert rows.action is not None
        with torch.inference_mode(False), torch.no_grad():
            expected = self.policy.evaluate(rows).logp
            worst = torch.zeros((), device=expected.device)
            for place, logits in enumerate(self._said_again(rows)):
                logits = logits.float()
                if rows.temperature is not None:
                    temperature = rows.temperature[:, place : place + 1]
                    logits = logits / temperature.where(temperature > 0, 1.0)
                token = rows.action[:, place].clamp_min(0)
                logp = logits.log_softmax(1).gather(1, token.unsqueeze(1)).squeeze(1)
                apart = (logp - expected[:, place]).abs().masked_fill(rows.sampled[:, place] == 0, 0.0)
                worst = torch.maximum(worst, apart.max())
            return float(worst)

    def _said_again(self, rows: Trajectories) -> Iterator[Tensor]:
        """Logits ``[N, V]`` of each position, with the recorded tokens before it."""
        assert rows.action is not None
        prompts = [ids[mask > 0].tolist() for ids, mask in zip(rows.inputs.prompt, rows.inputs.prompt_mask, strict=True)]
        action, room = rows.action.clamp_min(0), rows.action.shape[1]
        body = self.policy.body
        if body is None:
            stream = Stream(self.policy, prompts, [1] * len(prompts), room)
            for place in range(room):
                if place:
                    stream.advance(action[:, place - 1])
                yield stream.logits
            return
        stepper = self._ready(body, [tuple(prompt) for prompt in prompts], Seats(len(prompts), 0), room)
        every = torch.arange(len(prompts), device=action.device)
        stepper.fill(every, every, every)
        for place in range(room):
            if place:
                stepper.slots.token[:] = action[:, place - 1]
                stepper.slots.step[:] = place
            yield stepper.logits(len(prompts))

    def _memory(self) -> int:
        if self.memory_bytes:
            return self.memory_bytes
        device = self.policy.device
        return torch.cuda.get_device_properties(device).total_memory // 6 if device.type == "cuda" else 2 * 2**30

    def _token_bytes(self) -> int:
        """Memory of a token's keys and values, twice: while they grow."""
        config = self.policy.model.config.get_text_config()
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return 4 * config.num_hidden_layers * heads * width * self.policy.compute_dtype.itemsize

    def _seats(self, rows: int, room: int, mixed: bool) -> Seats:
        """How many rows are continued at once by our own decoding."""
        graphs = self.policy.device.type == "cuda"
        slot, token = self._slot_bytes(graphs), self._token_bytes() // (2 if graphs else 1)
        paged = self.paged and graphs_help(self.policy.device) and not mixed
        return seats(rows, (self.row_bytes or self._memory()) // (1 + mixed), room, slot, token, paged)

    def _slot_bytes(self, graphs: bool) -> int:
        """Memory of a row while it is continued, without what it has said: about six copies of its logits while drawing. Our graphs
        have two of them, and a cache that does not grow."""
        return (8 if graphs else 24) * self.policy.model.config.get_text_config().vocab_size

    def _row_bytes(self, tokens: int) -> int:
        """Memory of a row of so many tokens that `transformers` continues."""
        return self._slot_bytes(graphs=False) + tokens * self._token_bytes()

    def _chunks(self, prompts: Sequence[list[int]], each: list[int], room: int) -> Iterator[tuple[int, int]]:
        """Neighbouring prompts that fit the memory together; always at least one.

        Our own decoding keeps a prompt once and lets rows wait for their turn; `transformers` keeps all rows, each with its prompt.
        """
        memory, token_bytes, whole_rows = self._memory(), self._token_bytes(), self.policy.body is None
        start = longest = total = 0
        for number, prompt in enumerate(prompts):
            longest, total = max(longest, len(prompt)), total + len(prompt)
            size = sum(each[start : number + 1]) * self._row_bytes(longest + room) if whole_rows else total * token_bytes
            if number > start and size > memory:
                yield start, number
                start, longest, total = number, len(prompt), len(prompt)
        yield start, len(prompts)

    def _refuse(
        self, prompts: Sequence[list[int]], each: list[int], sampling: Sampling, uniforms: Tensor, limits: Sequence[int]
    ) -> None:
        if any(not prompt for prompt in prompts):
            raise UserError("a prompt has no tokens: the first one needs something to follow, such as the start token.")
        if len(limits) != len(prompts) or min(limits) < 1:
            raise UserError(
                f"{len(limits)} limits, the smallest {min(limits)}, for {len(prompts)} prompts: each needs one above 0."
            )
        wanted = (sum(each), sampling.max_tokens)
        if tuple(uniforms.shape) != wanted:
            n = str(each[0]) if len(set(each)) == 1 else f"{min(each)} to {max(each)}"
            raise UserError(f"uniforms of shape {list(uniforms.shape)}: {len(prompts)} prompts, n={n} and max_tokens={wanted[1]} "
                            f"need {list(wanted)}.")  # fmt: skip
        room = getattr(self.policy.model.config.get_text_config(), "max_position_embeddings", None)
        longest, limit = max(((len(prompt), own) for prompt, own in zip(prompts, limits, strict=True)), key=sum)
        if room and longest + limit > room:
            raise UserError(f"a prompt of {longest} tokens and max_tokens={limit} are more than the {room} positions "
                            f"of {self.policy.name!r}. Shorten the prompt or the completion.")  # fmt: skip


def _converse(stepper: Stepper, owner: Tensor) -> Iterator[None]:
    """Continues all rows, as many at once as slots and pages allow, the others as places become free; yields after every step."""
    slots, progress, device = stepper.slots, stepper.job.progress, owner.device
    waiting, every, count = deque(range(len(owner))), torch.arange(len(slots.row), device=device), 0
    free = every[:0]
    """Slots before ``count`` that no row has."""
    while waiting or len(free) < count:
        room = len(free) + len(every) - count
        if waiting and room and (taken := stepper.vacancies([*itertools.islice(waiting, room)])):
            new = torch.tensor([waiting.popleft() for _ in range(taken)], device=device)
            stepper.fill(torch.cat([free, every[count:]])[:taken], new, owner[new])
            count, free = count + max(0, taken - len(free)), free[taken:]
        if len(free) >= max(1, count * (0 if stepper.pages else DEAD_SHARE)):  # where rows have pages nothing is copied
            left = count - len(free)
            alive = (~slots.ended[left:count]).nonzero().squeeze(1) + left
            stepper.move(alive, free[free < left])
            count = left
        back = stepper.make_room()
        stepper.advance(count)
        stepper.listen(count)
        if bool(progress.withdrawn.any()):
            slots.ended[:count] |= progress.withdrawn.to(device)[slots.row[:count]]
        free = slots.ended[:count].nonzero().squeeze(1)
        if len(free):
            stepper.end(free)
            progress.ended[slots.row[free].cpu()] = True
        if back:
            progress.ended[back] = False
            waiting.extendleft(back)
        yield
    stepper.finish()
