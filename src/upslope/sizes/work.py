"""The work of a step as the estimator sees it: every setting that memory depends on."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from upslope.learners.base import needs_start
from upslope.learners.eight_bit_adam import BLOCK
from upslope.objective import estimator
from upslope.runtime.settings import Settings
from upslope.types import Method

UNKNOWN_PROMPT = 64
"""Tokens that a prompt is taken to have where prompts are made on the spot."""
MOMENTS = {"float32": 8.0, "bfloat16": 4.0, "8bit": 2 + 8 / BLOCK, "offload": 8.0}
"""Bytes of Adam's two moments of a parameter, by ``adam_states``: two codes and, of its block, its share of two scales."""


@dataclass(frozen=True)
class Work:
    """What a step asks for.

    Fields:
        prompts: tokens of the prompts that may be asked.
        copies: of the policy that are kept to compare with.
        moved_copies: those of them that move, and need the precision for it.
        head_outputs: of further heads on the trunk.
        packed: whether the weights under adapters are in four bits.
        fp8: whether sampling multiplies in eight bits.
        offloaded: whether Adam's moments are in the host's memory.
        by_group: whether learning looks at whole groups, and not at rows.
        sampled_here: and not by a server, or an engine with memory of its own.
        learners: processes that learn together.
        shard: whether each of them holds a part of weights, gradients and moments only.
        recompute: layers; "auto" is not settled yet.
        slice_tokens: the most tokens of a slice; 0 is the rule of whoever computes, None is not settled yet.
        row_bytes: what rows may take together while they are sampled; 0 is the engine's own share of the memory.
        unsettled: as it was asked for, where slices and layers are settled.
    """

    tasks: int
    samples: int
    max_tokens: int
    prompts: Sequence[int] = ()
    copies: int = 0
    moved_copies: int = 0
    head_outputs: int = 0
    lora: int = 0
    packed: bool = False
    fp8: bool = False
    precise: bool = False
    moment_bytes: float = MOMENTS["float32"]
    offloaded: bool = False
    updates: int = 1
    by_group: bool = False
    sampled_here: bool = True
    learners: int = 1
    shard: bool = False
    recompute: int | str = "off"
    slice_tokens: int | None = None
    row_bytes: int = 0
    unsettled: Work | None = field(default=None, compare=False, repr=False)

    @staticmethod
    def of(settings: Settings, method: Method, max_tokens: int, prompts: Sequence[int]) -> Work:
        """Of a run's settings, as they were resolved."""
        outputs = sum(getattr(model.head(), "outputs", 1) for _, model in method.heads)
        return Work(
            tasks=settings.tasks_per_step or 32,
            samples=settings.samples_per_task,
            max_tokens=max_tokens,
            prompts=tuple(prompts),
            copies=needs_start(method, settings) + sum(part.copies for _, part in method.references),
            moved_copies=sum(part.copies for _, part in method.references if part.moves_copies),
            head_outputs=outputs,
            lora=settings.lora,
            packed=settings.base_precision == "nf4",
            fp8=settings.sampling_precision == "fp8",
            precise=settings.precision == "float32",
            moment_bytes=MOMENTS[settings.adam_states],
            offloaded=settings.adam_states == "offload",
            updates=settings.updates_per_step or 1,
            by_group=estimator.slice_scope(method) == "group",
            sampled_here=settings.engine == "torch",
            learners=settings.learners,
            shard=settings.shard,
            recompute=settings.recompute,
            slice_tokens=settings.slice_tokens,
        )

    @property
    def parts(self) -> int:
        """What weights, gradients and moments are divided into."""
        return self.learners if self.shard else 1

    @property
    def longest(self) -> list[int]:
        """Tokens of the longest prompts that can meet in a step, longest first."""
        return heapq.nlargest(self.tasks, self.prompts) or [UNKNOWN_PROMPT] * self.tasks

    @property
    def rows(self) -> int:
        return self.tasks * self.samples

    @property
    def step_tokens(self) -> int:
        """Of a step whose prompts and answers are the longest there are, prompts once."""
        return sum(self.longest) + self.rows * self.max_tokens

    @property
    def update_tokens(self) -> int:
        return -(-self.step_tokens // self.updates)

    @property
    def unit(self) -> int:
        """Tokens of the least that learning can look at: a row, or a group."""
        return self.longest[0] + (self.samples if self.by_group else 1) * self.max_tokens

    def layers_again(self, layers: int) -> int:
        """Of so many layers those that are recomputed; what is not settled counts as none."""
        named: dict[int | str, int] = {"all": layers, "off": 0, "auto": 0}
        return min(layers, named[self.recompute] if self.recompute in named else int(self.recompute))
