"""The language-model policy: it encodes prompts, says how likely sampled tokens were, and saves itself for `transformers`.

Left out: sampling, which an engine does (``upslope.rollout.engines.torch_engine``).
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from upslope.errors import UserError
from upslope.plain_data import Prompt
from upslope.policies.adapter_files import Base
from upslope.policies.adapters import add_adapters, layer_matrices
from upslope.policies.forward import held_weights
from upslope.policies.forward.activation_cache import ActivationCache, KeptPasses
from upslope.policies.forward.architecture import Architecture, architecture
from upslope.policies.forward.blocks import hold_once
from upslope.policies.forward.decisions import Decisions
from upslope.policies.forward.decoder import hidden_states
from upslope.policies.forward.logprobs import chosen_logp
from upslope.policies.forward.packed_matrix import stands_in
from upslope.policies.forward.packing import lay_out, packed_tokens
from upslope.policies.forward.plain import extent_of, padded_columns
from upslope.policies.forward.probes import logits_of_head, probed
from upslope.policies.heads import make_head
from upslope.policies.model_files import ModelFiles
from upslope.policies.policy_files import PolicyFiles
from upslope.policies.slice_budget import CPU_SLICE_BYTES, SliceBound, cure, token_budget
from upslope.policies.text_inputs import TextInputs
from upslope.policies.tokenization import PromptFormat, PromptLimit, decoded, fitting, stop_ids
from upslope.runtime.seeding import mix
from upslope.types import Head, ModelView, Probe, Trajectories, View

NOISE = ("dropout", "pdrop", "layerdrop", "jitter")


class LanguageModel(PolicyFiles):
    """A causal language model of `transformers`, its tokenizer and, on request, a value head on its trunk.

    Dropout is switched off for good: the log-probabilities of the learner and of the engine must be those of one function,
    whether the module is in training or in evaluation mode.

    Args:
        model: Any causal language model; it stays in the precision it comes in.
        tokenizer: Its tokenizer. One with a chat template gets each prompt as a user's message.
        name: What logs call it.
    """

    domain: ClassVar[str] = "text"
    independent_decisions = False
    """Attention ties the decisions of a row together."""
    sharded = False
    """Whether this process holds a part of every weight only (`upslope.policies.sharded`)."""
    shares_prompts = True
    """Whether `transformers` is given each prompt once for all rows that continue it."""
    slice_bytes: int = CPU_SLICE_BYTES
    """Memory of a slice on a CPU, with its gradient. More makes slices larger and fewer; the result is the same to rounding."""

    def __init__(self, model: Any, tokenizer: Any, name: str):
        self.name = name
        self.model = model
        self.tokenizer = tokenizer
        self.heads: dict[str, nn.Module] = {}
        self._body: tuple[Any, Architecture | None] | None = None
        self.plain = False
        """Leave the model to `transformers` even if it is one that is known here."""
        self.stop_ids = stop_ids(model, tokenizer)
        known = (tokenizer.pad_token_id, getattr(model.config.get_text_config(), "pad_token_id", None), *sorted(self.stop_ids), 0)
        self.pad_id: int = next(pad for pad in known if isinstance(pad, int) and pad >= 0)
        _switch_off_dropout(model)
        model.eval()
        self.prompt_limit: PromptLimit | None = None
        self.prompt_format = PromptFormat()
        """How long a prompt may be, if anything limits it."""
        self.source: Path | None = None
        """The folder it was loaded from."""
        self.adapted = False
        """Whether adapters learn in place of the model's own weights."""
        self.apart = False
        """Whether these are computed beside the weights, which are held once in the precision of products, and never merged."""
        self.packed = False
        """Whether the layers' matrices among those weights are held in four bits (`upslope.policies.forward.nf4`)."""
        self.before_packing: dict[str, Tensor] = {}
        """What these matrices were, of a model that is in no folder: it is written where the base of the adapters is kept."""
        self.base: Base | None = None
        """Where the files of the model that adapters were added to are, if that is known."""
        self.recompute = 0
        """Layers of which no activations are kept while learning: less memory, for all of them at about one more forward pass."""
        self.slices = SliceBound()
        """How much learning looks at together, where that is given."""
        self.kept = KeptPasses()
        """What was computed while sampling, until weights change."""
        self.precise = False
        """Compute in the weights' own precision on a GPU too."""
        self._files = ModelFiles()
        self._tokenizer_files: dict[str, bytes] = {}

    @property
    def body(self) -> Architecture | None:
        """Where the parts of the model are, if it is one that is computed here and not by `transformers`."""
        if self.plain:
            return None
        if self._body is None or self._body[0] is not self.model:
            found = architecture(self.model)
            self._body = (self.model, found if found is None or not self.apart else replace(found, apart=True))
        return self._body[1]

    @property
    def compute_dtype(self) -> torch.dtype:
        """What products are computed in; weights stay as they are. On a GPU bfloat16, log-probabilities always float32."""
        own = next(self.model.parameters()).dtype
        return torch.bfloat16 if own == torch.float32 and self.device.type == "cuda" and not self.precise else own

    # -- text ----------------------------------------------------------------------------------------------------------

    def encode(self, prompt: Prompt) -> list[int]:
        """The ids to continue from; never empty, as the first token needs something to follow."""
        return self.encode_all([prompt])[0]

    def encode_all(self, prompts: Sequence[Prompt]) -> list[list[int]]:
        start = self.tokenizer.bos_token_id
        first = start if start is not None else min(self.stop_ids, default=self.pad_id)
        return [list(ids) or [first] for ids in fitting(self.tokenizer, prompts, self.prompt_limit, self.prompt_format)]

    def decode(self, ids: Sequence[int] | Tensor) -> str:
        """The text of these ids, without special tokens."""
        return self.decode_all([ids.tolist() if isinstance(ids, Tensor) else ids])[0]

    def decode_all(self, rows: Sequence[Sequence[int]]) -> list[str]:
        return decoded(self.tokenizer, rows)

    # -- learning ------------------------------------------------------------------------------------------------------

    def evaluate(
        self,
        rows: Trajectories,
        needs: frozenset[str] = frozenset(),
        *,
        view: ModelView | None = None,
        probes: tuple[Probe, ...] = (),
    ) -> View:
        """How likely each sampled token is, untruncated and at the recorded temperature, with gradient where it is enabled.

        A sequence is ``[prompt | response]``. Columns of nothing but padding are not computed, and rows are taken in chunks
        that fit `token_budget`; neither changes the result beyond rounding. A recorded temperature of 0 (greedy) has no
        log-probabilities to learn from and is read as 1.

        Args:
            rows: Sampled rows with `TextInputs`; ``action`` holds the response's ids, those of others' text among them.
            needs: Of ``"entropy"``, the names of heads (``"value"``) and those of ``probes``; ``logp`` always comes.
            view: The method's view of the model: the distribution may be read off another place of the network.
            probes: What else to compute where the logits are (`upslope.objective.base.Probe`).

        Returns:
            Columns ``[N, T]`` in float32, 0 where nothing was sampled.
        """
        known = {"entropy", *self.heads, *(probe.name for probe in probes)}
        if "value" in needs - known:
            raise UserError(
                f"{self.name!r} has no value head. Call add_value_head(seed) first, or leave 'value' out of the columns."
            )
        if unknown := needs - known:
            raise UserError(f"{self.name!r} has no column {sorted(unknown)[0]!r}; it has {', '.join(sorted(known | {'logp'}))}.")
        names = ["logp", *sorted(needs)]
        chunks = [self._evaluate_chunk(rows, chunk, names, view, probes) for chunk in self._chunks(rows)]
        if not chunks:
            return View.of({name: torch.zeros(rows.sampled.shape, device=rows.sampled.device) for name in names})
        return View.of({name: torch.cat([chunk[name] for chunk in chunks]) for name in names})

    def _evaluate_chunk(
        self, rows: Trajectories, chunk: slice, names: list[str], view: ModelView | None, probes: tuple[Probe, ...]
    ) -> dict[str, Tensor]:
        """The columns of some rows, computed on their own extent and padded back to all positions."""
        sampled = rows.sampled[chunk] > 0
        # At least one position stays, so that rows without a sampled token still have a (zero) gradient.
        extent = extent_of(sampled).clamp_min(1)
        positions = int(extent.max())
        decisions = Decisions.of(rows, chunk, positions, bool(probes))
        if self.body is not None:
            with contextlib.nullcontext() if view is None else view.applied(self.model):
                inputs = rows.inputs.take(lambda x: x[chunk])
                # Rows that are compared with another policy's view of them are looked at in the way that one looked at them: of
                # two policies with the same weights the difference is zero then, and not rounding, which Adam would follow.
                if view is not None or rows.reference:
                    inputs = replace(inputs, kept=None)
                columns = self._by_pass(inputs, decisions, extent, names, probes)
        else:
            heads = {name: self.heads[name] for name in names if name in self.heads}
            inputs = rows.inputs.take(lambda x: x[chunk])
            columns = padded_columns(self.model, inputs, decisions, "entropy" in names, heads, view, probes, self.shares_prompts)
        blank = rows.sampled.shape[1] - positions
        kept = sampled[:, :positions]
        return {name: nn.functional.pad(columns[name].masked_fill(~kept, 0.0), (0, blank)) for name in names}

    def _by_pass(
        self, inputs: TextInputs, decisions: Decisions, extent: Tensor, names: list[str], probes: tuple[Probe, ...]
    ) -> dict[str, Tensor]:
        """Columns ``[N, T]``; rows that different passes have sampled are looked at apart, where that spares more than it costs."""
        assert self.body is not None
        parts = self.kept.of(self.body, inputs, extent)
        if len(parts) == 1:
            return self._packed(inputs, decisions, extent, names, probes, parts[0].kept)
        found = []
        for part in parts:
            own, longest = extent[part.rows], int(extent[part.rows].max())
            asked = decisions.map(lambda column, rows=part.rows, end=longest: column[rows, :end])  # type: ignore[misc]
            columns = self._packed(inputs.take(part.of), asked, own, names, probes, part.kept)
            found.append({name: nn.functional.pad(columns[name], (0, decisions.action.shape[1] - longest)) for name in names})
        order = torch.cat([part.rows for part in parts]).argsort()
        return {name: torch.cat([columns[name] for columns in found])[order] for name in names}

    def _packed(
        self, inputs: TextInputs, decisions: Decisions, extent: Tensor, names: list[str], probes: tuple[Probe, ...],
        kept: ActivationCache | None = None,
    ) -> dict[str, Tensor]:  # fmt: skip
        """Columns ``[N, T]`` by our own decoder: packed tokens, logits in chunks that are never kept."""
        body, dtype, numbers = self.body, self.compute_dtype, inputs.kept
        assert body is not None
        by_step = kept is not None and numbers is not None and kept.whole(numbers, extent)
        layout = lay_out(inputs.prompt, inputs.prompt_mask, decisions.action, extent, by_step)
        known = None if kept is None or numbers is None else kept.products(numbers, layout)
        hidden, weight = hidden_states(body, layout, dtype, self.recompute, known), body.head.weight
        packed = decisions.map(layout.packed)
        held = body.held_head(dtype)
        found = chosen_logp(hidden, weight, packed.action, packed.temperature, "entropy" in names, dtype, held)
        for name, head in ((name, self.heads[name]) for name in names if name in self.heads):
            found[name] = head(hidden.to(next(head.parameters()).dtype)).squeeze(-1)
        if probes:
            found |= probed(probes, hidden, logits_of_head(weight, dtype), len(weight), hidden, packed)
        return {name: layout.rows(found[name]) for name in names}

    @property
    def pads(self) -> bool:
        """Whether rows evaluated together cost as much as the longest each. Our own decoder computes no padding."""
        return self.body is None

    def _chunks(self, rows: Trajectories) -> Iterator[slice]:
        """Neighbouring rows that fit the token budget; always at least one."""
        if not rows.sampled.shape[1]:
            return
        budget, cost = self.token_budget(), self.slice_tokens(rows).tolist()
        start, longest, total = 0, 0.0, 0.0
        for row, own in enumerate(cost):
            longest, total = max(longest, own), total + own
            if row > start and ((row + 1 - start) * longest if self.pads else total) > budget:
                yield slice(start, row)
                start, longest, total = row, own, own
        if len(cost) > start:
            yield slice(start, len(cost))

    def slice_tokens(self, rows: Trajectories) -> Tensor:
        """Tokens each row costs ``[N]``: its response up to the last sampled one, and its prompt or its share of it."""
        response = extent_of(rows.sampled > 0)
        if self.pads or not len(response):
            return rows.inputs.prompt_mask.sum(1) + response
        return packed_tokens(rows.inputs.prompt, rows.inputs.prompt_mask, response)

    def token_budget(self) -> int:
        """How many tokens one slice may hold so that its gradient fits into memory."""
        return token_budget(self)

    def memory_cure(self, rows: int) -> str:
        """What to change where memory does not hold the gradient of one row, or of a group of so many."""
        return cure(self, rows)

    # -- parameters ----------------------------------------------------------------------------------------------------

    @property
    def value_head(self) -> Any:
        """The head called ``value``, if there is one."""
        return self.heads.get("value")

    def add_value_head(self, seed: int) -> None:
        """A linear value on the hidden state that predicts a token, kept in float32. Does nothing when there is one."""
        self.add_head("value", Head(), seed)

    def add_head(self, name: str, head: Head, seed: int) -> None:
        """A further output on the hidden state that predicts a token, kept in float32. One of that name stays as it is."""
        if name not in self.heads:
            width = self.model.config.get_text_config().hidden_size
            self.heads[name] = make_head(head, width, seed, name).to(self.device)

    def add_lora(self, rank: int, seed: int) -> None:
        """Low-rank adapters on every projection, which alone learn from now on; they start without effect.

        Raises:
            MissingExtra: if peft is not installed.
        """
        add_adapters(self.model, rank, mix(seed, "lora"))
        self.adapted = True

    def hold_apart(self, dtype: torch.dtype, device: str | torch.device | None = None, packed: bool = False) -> None:
        """Holds all that never moves once, in this precision on this device, and computes adapters beside it from now on.

        Sampling and learning then read the same memory, whose addresses stay; nothing is merged, and the weights get no gradient.
        Copies of the policy (`frozen_copy`) are further adapters on the same weights.

        Args:
            packed: the layers' matrices are held in four bits there, and unpacked one at a time.
        """
        body, place = self.body, torch.device(self.device if device is None else device)
        if not self.adapted or body is None:
            raise UserError(f"{self.name!r} has no adapters that could be computed beside its weights.")
        if place.type == "cuda" and place.index is None:
            place = torch.device("cuda", torch.cuda.current_device())
        if self.packed and not packed:
            raise UserError(f"{self.name!r} is held in four bits; load it again to hold it in {dtype}.")
        if packed and self.source is None:
            self.before_packing = layer_matrices(self.model)
        # Layer by layer, straight to its place: two copies of a large model need not fit there.
        hold_once(body, place, dtype, packed)
        for name, parameter in self.model.named_parameters():
            if "lora_" not in name and not stands_in(parameter):  # what is packed is there
                parameter.data = parameter.data.to(place, dtype)
        self.apart, self.packed, self._body = True, packed, None
        self.to(place)

    def hold_still(self) -> None:
        """Of a copy that never moves: holds the layers' weights once, in the precision of products, where that is another."""
        body, dtype = self.body, self.compute_dtype
        if body is None or self.adapted or dtype == body.head.weight.dtype or not held_weights.serves(body.head.weight):
            return
        hold_once(body, self.device, dtype)
        if body.head.weight is not body.stack.embed_tokens.weight:
            body.head.weight.data = body.head.weight.data.to(dtype)

    def trainable(self) -> dict[str, list[nn.Parameter]]:
        """Parameters by what they belong to: ``policy`` and the names of heads (``value`` is empty without a value head)."""
        heads = {name: list(head.parameters()) for name, head in self.heads.items()}
        return {"policy": [p for p in self.model.parameters() if p.requires_grad], "value": [], **heads}

    def parameter_count(self) -> int:
        """Parameters of the model, tied ones once, the value head not counted."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    def frozen_copy(self) -> LanguageModel:
        """The policy as it is now, without gradient: a reference. Beside adapters it shares the weights that never move."""
        frozen = copy.copy(self)
        frozen.kept, frozen._files, frozen._body = KeptPasses(), ModelFiles(), None
        shared = {id(own): own for name, own in self.model.named_parameters() if self.adapted and "lora_" not in name}
        frozen.model = copy.deepcopy(self.model, shared).requires_grad_(False).eval()
        frozen.heads = {name: copy.deepcopy(head).requires_grad_(False) for name, head in self.heads.items()}
        return frozen

    def weights(self) -> dict[str, Tensor]:
        """All weights by name, tied ones once: whoever changes each of them in place changes none twice. Beside adapters, those
        that never move are left out."""
        heads = {f"heads.{name}.{key}": value for name, head in self.heads.items() for key, value in head.state_dict().items()}
        own = {(value.data_ptr(), value.shape): (key, value) for key, value in reversed(self.model.state_dict().items())}
        moving = [(key, value) for key, value in reversed(own.values()) if "lora_" in key or not self.adapted]
        return {**{f"model.{key}": value for key, value in moving}, **heads}

    def load_weights(self, weights: dict[str, Tensor]) -> None:
        """Takes what `weights` gave, in place."""
        own = self.weights()
        with torch.no_grad():
            for key, tensor in own.items():
                tensor.copy_(weights[key])

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def to(self, device: str | torch.device | None = None, dtype: torch.dtype | None = None) -> LanguageModel:
        """Moves the policy; heads change their device only, as values need the precision."""
        if self.apart and (body := self.body) is not None:  # before the rest, which would take what lies together apart
            place = torch.device(self.device if device is None else device)
            hold_once(body, place, next(self.model.parameters()).dtype if dtype is None else dtype, self.packed)
        self.model.to(device=device, dtype=dtype)
        for head in self.heads.values():
            head.to(device=device)
        return self


def _switch_off_dropout(model: Any) -> None:
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
    for holder in (*model.modules(), model.config, model.config.get_text_config()):
        for name, value in list(vars(holder).items()):
            if isinstance(value, float) and any(word in name for word in NOISE):
                setattr(holder, name, 0.0)
