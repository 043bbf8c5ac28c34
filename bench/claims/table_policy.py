"""The table itself: a softmax table as the learner's policy, small enough that J, entropy and pass@k are sums, not estimates."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import torch
from table_rewards import Exact, GoodArms, Reward, survival
from torch import Tensor, nn

from upslope.errors import UserError
from upslope.objective.base import ProbeInputs
from upslope.policies.heads import soft_minimum
from upslope.runtime.seeding import generator
from upslope.types import Head, Metrics, Trajectories, View

ENUMERATED = 4096
"""Answers up to which a reward without a closed form is summed over all of them."""


@dataclass(frozen=True)
class TableBed:
    """A problem and how it is sampled. Each position of an answer has a distribution of its own in each context.

    Fields:
        reward: what an answer earns; tokens 1..good are the right ones.
        contexts: different tasks. vocabulary: arms, or tokens. positions: decisions of an answer.
        known: probability of *each* right token at the start; small makes it rare, 0 leaves it like all others. A tuple is dealt
            out to the contexts in turn, which mixes easy with hard ones.
        spread: standard deviation of the logits at the start; 0 is uniform.
        filler: boilerplate positions, where token 1 starts with ``filler_known`` whatever ``known`` is. Let the reward ignore them
            (``Lock(free=...)``), or not.
        stop: token 0 ends an answer, so that lengths differ; an answer that never ends is truncated.
        items: `segment["item"]` cuts an answer into so many equal parts.
        features: 0 is a table. Else logits are linear in so many fixed random features of a context: fewer than contexts
            make them disturb each other, and the right token has another name in each.
        shared: positions whose distribution all contexts share (tags, format).
        lag: rollouts come from the policy of so many steps ago; from the first one if there were fewer, so a huge lag is offline.
        sampler_noise: standard deviation of noise on the sampler's logits, drawn anew each step: behaviour is not the policy.
        ratio_to_sampler: ratios are taken to the recorded behaviour, not to the policy at the beginning of the step.
        temperature: of sampling; log-probabilities are taken at it.
    """

    reward: Reward = field(default_factory=GoodArms)
    contexts: int = 16
    vocabulary: int = 32
    positions: int = 1
    known: float | tuple[float, ...] = 0.0
    spread: float = 0.0
    filler: tuple[int, ...] = ()
    filler_known: float = 0.99
    stop: bool = False
    items: int = 1
    features: int = 0
    shared: tuple[int, ...] = ()
    lag: int = 0
    sampler_noise: float = 0.0
    ratio_to_sampler: bool = False
    temperature: float = 1.0

    def __post_init__(self) -> None:
        for name, least in (("contexts", 1), ("positions", 1), ("items", 1), ("features", 0), ("lag", 0), ("spread", 0)):
            if getattr(self, name) < least:
                raise UserError(f"TableBed({name}={getattr(self, name)}): it must be at least {least}.")
        if self.vocabulary < self.reward.good + 2:
            raise UserError(
                f"TableBed(vocabulary={self.vocabulary}): {self.reward.good} right tokens, token 0 and a wrong one do not fit."
            )
        knowns = self.known if isinstance(self.known, tuple) else (self.known,)
        if not knowns or not all(0 <= each * self.reward.good < 1 for each in (*knowns, self.filler_known / self.reward.good)):
            raise UserError(
                f"TableBed(known={self.known}, filler_known={self.filler_known}): all right tokens together must stay below 1."
            )
        if self.temperature <= 0 or self.sampler_noise < 0:
            raise UserError(
                f"TableBed(temperature={self.temperature}, sampler_noise={self.sampler_noise}): above 0, and 0 or more."
            )
        for name in ("filler", "shared"):
            if any(not 0 <= position < self.positions for position in getattr(self, name)):
                raise UserError(f"TableBed({name}={getattr(self, name)}): positions are 0 to {self.positions - 1}.")

    def first_logits(self, seed: int) -> Tensor:
        """Where a run with this seed begins ``[C, T, V]``."""
        shape = (self.contexts, self.positions, self.vocabulary)
        logp = (self.spread * torch.randn(shape, generator=generator(seed, "table"))).log_softmax(-1)
        knowns = torch.tensor(self.known if isinstance(self.known, tuple) else (self.known,))
        each = knowns[torch.arange(self.contexts) % len(knowns)].unsqueeze(1).repeat(1, self.positions)
        count = torch.full((self.positions,), self.reward.good)
        if self.filler:
            each[:, list(self.filler)], count[list(self.filler)] = self.filler_known, 1
        arms = torch.arange(self.vocabulary)
        right = (arms >= 1) & (arms <= count.unsqueeze(1)) & (each > 0).unsqueeze(2)
        others = logp.masked_fill(right, -torch.inf).logsumexp(-1)
        left = (1 - each * count * (each > 0)).log()
        return torch.where(right, each.clamp_min(1e-30).log().unsqueeze(2), logp - (others - left).unsqueeze(2))


class TablePolicy(nn.Module):
    """Logits by context and position, and on request a value for each: what the learner asks of a policy, and exact sums."""

    domain = "text"
    independent_decisions = False
    pads = True

    def __init__(self, bed: TableBed, seed: int):
        super().__init__()
        self.bed = bed
        self.register_buffer("first", bed.first_logits(seed))
        self.moved = nn.Parameter(torch.zeros(bed.features or bed.contexts, bed.positions, bed.vocabulary))
        self.heads = nn.ParameterDict()
        """Further outputs ``[C, T, K]`` by name."""
        self.softness: dict[str, float] = {}
        self.places = torch.arange(bed.positions)
        self.context = torch.arange(bed.contexts).unsqueeze(1).repeat(1, bed.positions)
        if bed.shared:
            self.context[:, list(bed.shared)] = 0
        if bed.features:
            random = generator(seed, "features")
            self.features = torch.randn(bed.contexts, bed.features, generator=random) / bed.features**0.5
            orders = [torch.randperm(bed.vocabulary - 1, generator=random) + 1 for _ in range(bed.contexts)]
            self.names = torch.stack([torch.cat([torch.zeros(1, dtype=torch.long), order]) for order in orders])
        self._answers: tuple[Tensor, Tensor, Tensor] | None = None

    def logits(self) -> Tensor:
        """As they stand ``[C, T, V]``, before the temperature."""
        moved: Tensor = self.moved
        if self.bed.features:
            moved = torch.einsum("cf,ftv->ctv", self.features, moved)
            moved = moved.gather(2, self.names.unsqueeze(1).expand_as(moved))
        logits = self.first + moved
        return logits[self.context, self.places] if self.bed.shared else logits

    def log_probability(self) -> Tensor:
        """At the bed's temperature ``[C, T, V]``."""
        return (self.logits() / self.bed.temperature).log_softmax(-1)

    # -- what the learner asks -----------------------------------------------------------------------------------------

    def evaluate(self, rows: Trajectories, needs: frozenset[str] = frozenset(), *, view: Any = None, probes: Any = ()) -> View:
        """Columns ``[N, T]`` of the recorded tokens."""
        known = {"entropy", *self.heads, *(probe.name for probe in probes)}
        if view is not None or needs - known:
            lacks = f"column {min(needs - known)!r}" if needs - known else "layers to look through"
            raise UserError(f"a table has no {lacks}; it has the columns {', '.join(sorted({'logp', *known}))}.")
        table, context, action = self.log_probability(), rows.inputs.context, rows.action
        columns = {"logp": table[context.unsqueeze(1), self.places, action]}
        if "entropy" in needs:
            columns["entropy"] = -(table.exp() * table).sum(2)[context]
        for name in needs & set(self.heads):
            outputs = self.heads[name][context]
            columns[name] = (outputs if outputs.shape[-1] == 1 else soft_minimum(outputs, self.softness[name])).squeeze(-1)
        for probe in probes:
            columns[probe.name] = self._probed(probe, rows, table)
        return View.of(columns)

    def _probed(self, probe: Any, rows: Trajectories, table: Tensor) -> Tensor:
        """A probe's column ``[N, T]``; what stands for the hidden state is the context's features, or which context it is."""
        context, bed = rows.inputs.context, self.bed
        hidden = (self.features if bed.features else torch.eye(bed.contexts))[context].unsqueeze(1).expand(-1, bed.positions, -1)
        advantage = torch.zeros_like(rows.sampled) if rows.advantage is None else rows.advantage
        assert rows.action is not None
        with torch.no_grad():
            seen = ProbeInputs(table[context].flatten(0, 1), hidden.flatten(0, 1), rows.action.flatten(), advantage.flatten())
            return probe(seen).reshape(rows.sampled.shape)

    def slice_tokens(self, rows: Trajectories) -> Tensor:
        return torch.full((rows.rows,), rows.sampled.shape[1], dtype=torch.int64)

    def token_budget(self) -> int:
        return 1 << 20

    def trainable(self) -> dict[str, list[nn.Parameter]]:
        return {"policy": [self.moved], **{name: [table] for name, table in self.heads.items()}}

    def add_head(self, name: str, head: Head, seed: int) -> None:
        """A further table, zero but for a little noise that tells several outputs apart."""
        if name not in self.heads:
            shape = (self.bed.contexts, self.bed.positions, head.outputs)
            noise = 0.1 * torch.randn(shape, generator=generator(seed, name)) if head.outputs > 1 else torch.zeros(shape)
            self.heads[name], self.softness[name] = nn.Parameter(noise), head.softness

    def weights(self) -> dict[str, Tensor]:
        return dict(self.state_dict())

    def load_weights(self, weights: dict[str, Tensor]) -> None:
        self.load_state_dict(weights)

    def frozen_copy(self) -> TablePolicy:
        return copy.deepcopy(self).requires_grad_(False)

    # -- what is known exactly -----------------------------------------------------------------------------------------

    def exact(self) -> Exact:
        """Expected reward and chance of a right answer in each context ``[C]``, with gradient."""
        probability = self.log_probability().exp()
        found = self.bed.reward.exact(probability, self.bed.stop)
        return found if found is not None else self._enumerated(probability)

    def _enumerated(self, probability: Tensor) -> Exact:
        bed = self.bed
        if self._answers is None:
            if bed.vocabulary**bed.positions > ENUMERATED:
                raise UserError(
                    f"{type(bed.reward).__name__} has no closed form, and {bed.vocabulary}^{bed.positions} answers are too many to "
                    f"sum over (at most {ENUMERATED}). Give it a method exact(probability, stop), or make the bed smaller."
                )
            answers = torch.cartesian_prod(*[torch.arange(bed.vocabulary)] * bed.positions).reshape(-1, bed.positions)
            seen = after_stop(answers, 0)[0] if bed.stop else answers
            contexts = torch.arange(bed.contexts).repeat_interleave(len(answers))
            repeated = seen.repeat(bed.contexts, 1)
            pays = bed.reward.mean(contexts, repeated).reshape(bed.contexts, -1)
            self._answers = answers, pays, bed.reward.right(contexts, repeated).float().reshape(bed.contexts, -1)
        answers, pays, right = self._answers
        # Where an answer has ended, all its continuations together have probability one.
        chance = probability[:, self.places.unsqueeze(0), answers].prod(2)
        return Exact((chance * pays).sum(1), (chance * right).sum(1))

    def exact_entropy(self) -> float:
        """Mean entropy of a decision, over the decisions that are reached."""
        with torch.no_grad():
            table = self.log_probability()
            entropy = -(table.exp() * table).sum(2)
            reached = survival(table.exp()) if self.bed.stop else torch.ones_like(entropy)
            return float((entropy * reached).sum() / reached.sum())

    def pass_at(self, k: int) -> float:
        """The exact chance that one of ``k`` independent answers is right, mean over contexts."""
        with torch.no_grad():
            return float((1 - (1 - self.exact().success) ** k).mean())

    def told(self) -> Metrics:
        """The exact numbers of a step: J, success, exact_entropy, exact_length, pass@8, pass@64, and the reward's own."""
        with torch.no_grad():
            probability = self.log_probability().exp()
            found = self.exact()
            length = float(survival(probability).sum(1).mean()) if self.bed.stop else float(self.bed.positions)
            passed = {f"pass@{k}": float((1 - (1 - found.success) ** k).mean()) for k in (8, 64)}
            return {
                "J": float(found.reward.mean()), "success": float(found.success.mean()), "worst_context": float(found.reward.min()),
                "exact_entropy": self.exact_entropy(), "exact_length": length, **passed, **self.bed.reward.extras(probability),
            }  # fmt: skip


def after_stop(tokens: Tensor, stop: int) -> tuple[Tensor, Tensor]:
    """The tokens with ``stop`` written behind the first one, and which of them were sampled, both ``[N, T]``."""
    ends = (tokens == stop).long()
    sampled = (ends.cumsum(1) - ends) == 0
    return torch.where(sampled, tokens, stop), sampled.float()
