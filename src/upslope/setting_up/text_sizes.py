"""Sizes of a run on text: looked at before its model is loaded, settled when its prompts are known, and what comes of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from upslope.policies.blank import blank_weights
from upslope.policies.forward.architecture import architecture
from upslope.policies.forward.packed_matrix import weight_bytes
from upslope.policies.model_shape import ModelShape
from upslope.runtime.settings import Settings
from upslope.setting_up.base import DryRun
from upslope.setting_up.base_precision import check_can_be_packed
from upslope.setting_up.sampling_precision import check_can_sample, check_card
from upslope.setting_up.speculate import check_can_draft
from upslope.sizes.card import Card, gibibytes
from upslope.sizes.estimate import DoesNotFit, Estimate, host_problem, loading_problem, memory_problem, text_estimate
from upslope.sizes.memory import CUDA_OWN, memory_of
from upslope.sizes.settle import fits, settled
from upslope.sizes.work import Work
from upslope.types import Method

if TYPE_CHECKING:
    from upslope.policies.given import GivenModel
    from upslope.policies.language_model import LanguageModel


class TextSizes:
    """What a run takes, on the device that it is for.

    Args:
        settings: as they were resolved, device and all.
        max_tokens: of an answer.
        dry: nothing is loaded.
        in_folder: whether the model is in a folder that adapters can name.
        merged: whether it is adapters, which are merged in float32 when they are loaded.

    Raises:
        UserError: if the device cannot compute as the settings ask.
    """

    policy: LanguageModel
    shape: ModelShape | None
    work: Work

    def __init__(
        self, settings: Settings, method: Method, max_tokens: int, dry: DryRun | None, in_folder: bool, merged: bool = False
    ):
        self.settings, self.method, self.max_tokens, self.dry, self.in_folder = settings, method, max_tokens, dry, in_folder
        self.merged = merged
        self.card = Card.here(settings.device) if dry is None else dry.card(settings.device)
        self.card.check_precision(settings.precision)
        check_card(settings, self.card)

    def check_before_loading(self, model: str | GivenModel) -> None:
        """Refuses a model that memory cannot hold even with short prompts: minutes may go into loading it."""
        blank = blank_weights(model) if isinstance(model, str) else None
        if blank is not None:
            check_can_be_packed(self.settings, str(model), blank)
            body = architecture(blank)
            check_can_draft(self.settings, str(model), body is not None)
            check_can_sample(self.settings, str(model), body)
            shape = ModelShape.of(blank, body is not None and not self.settings.plain)
            work = settled(shape, Work.of(self.settings, self.method, self.max_tokens, ()), self.card)
            self._check(shape, work, self.card)
            if shape is not None and (told := self._loading_problem(shape, work)):
                raise DoesNotFit(told)

    def settle(self, policy: LanguageModel, prompts: Sequence[int], alone: bool = True) -> Settings:
        """How learning is cut, from the plan and the device's memory: given to the policy, and to ``run.toml`` as settings.

        Args:
            alone: nothing else that samples, judges or scores is held on the device beside the policy: what that takes is in no
                plan, so rows leave it room.
        """
        self.policy, self.shape = policy, ModelShape.of(policy.model, policy.body is not None)
        work = settled(self.shape, Work.of(self.settings, self.method, self.max_tokens, prompts), self.card)
        alone = alone and not self.settings.workers  # they sample beside this process
        self.work = work if alone else dataclasses.replace(work, row_bytes=0)
        layers = getattr(policy.model.config.get_text_config(), "num_hidden_layers", 0)
        policy.recompute, policy.slices.tokens = self.work.layers_again(layers), self.work.slice_tokens or 0
        cut = {"recompute": self.work.recompute, "slice_tokens": self.work.slice_tokens}
        self.settings = dataclasses.replace(self.settings, **cut)  # type: ignore[arg-type]
        return self.settings

    def estimate(self, out: Path | None = None) -> Estimate:
        """What the run takes and writes."""
        held = 0 if self.shape is not None else sum(parameter.numel() for parameter in self.policy.model.parameters())
        found = text_estimate(self.shape, self.work, self.settings, self._device(), out=out, held=held, in_folder=self.in_folder)
        if self.dry is None or self.shape is None or not (told := self._loading_problem(self.shape, self.work)):
            return found
        return dataclasses.replace(found, problems=(*found.problems, told))

    def check(self) -> None:
        """Refuses steps that take more memory than there is, as far as that can be foreseen."""
        device = self._device()
        self._check(self.shape, self.work, device)
        if device.on_gpu and self.shape is not None:
            memory = memory_of(self.shape, self.work, device)
            free, total = torch.cuda.mem_get_info(self.policy.device)
            others = total - free - torch.cuda.memory_reserved(self.policy.device) - CUDA_OWN
            if memory.total + others > device.total:
                told = f"of the {gibibytes(device.total)} of {device.name} others hold {gibibytes(others)}"
                raise DoesNotFit(
                    f"{told}, and the run would take about {gibibytes(memory.total)} ({memory}). End them, or give less."
                )

    def _loading_problem(self, shape: ModelShape, work: Work) -> str:
        return loading_problem(shape, work, self.card, self.merged)

    def _device(self) -> Card:
        """The device, with what the run holds of a machine's memory already."""
        if self.dry is not None or self.card.on_gpu:
            return self.card
        if self.policy.packed:
            return Card.here("cpu", weight_bytes(self.policy.model))
        return Card.here("cpu", sum(each.numel() * each.element_size() for each in self.policy.model.parameters()))

    @staticmethod
    def _check(shape: ModelShape | None, work: Work, card: Card) -> None:
        if shape is not None and not fits(memory := memory_of(shape, work, card), card):
            raise DoesNotFit(memory_problem(shape, work, card, memory))
        if shape is not None and (told := host_problem(shape, work, card)):
            raise DoesNotFit(told)
