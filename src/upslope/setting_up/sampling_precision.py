"""What answers are sampled in (``--sampling-precision``): what goes together, said before anything is loaded."""

from __future__ import annotations

import warnings

from upslope.errors import Remark, UserError
from upslope.policies.forward.architecture import Architecture
from upslope.policies.forward.fp8 import MULTIPLE
from upslope.runtime.settings import Settings
from upslope.setting_up.where import corrects_for_age
from upslope.sizes.card import Card
from upslope.types import Method

FP8_FROM = (8, 9)
"""The compute capability of Ada, the first with products in eight bits."""


def check_sampling_precision(method: Method, settings: Settings) -> None:
    """Refuses to sample in eight bits where nobody does, or with a method that takes what was sampled for the policy's own."""
    if settings.sampling_precision == "auto":
        return
    told = f"--sampling-precision {settings.sampling_precision}"
    phases = [stage.as_method(method) for stage in method.stages] + [method]
    if all(each.rollout is not None and not each.rollout.samples and not each.data for each in phases):
        raise UserError(f"{told}: {method.name} samples nothing that it could learn from. Leave it out.")
    if settings.engine != "torch":
        raise UserError(f"{told} with --engine {settings.engine}: it is about our own engine; a server is started with a "
                        "quantization of its own. Leave it out, or take --engine torch.")  # fmt: skip
    if settings.plain:
        raise UserError(f"{told} with --plain: `transformers` samples then, in the weights' own precision. Leave one of them out.")
    if settings.base_precision != "auto":
        raise UserError(f"{told} with --base-precision {settings.base_precision}: weights in four bits are unpacked for each "
                        "product, and a second set in eight bits would take twice their memory. Leave one out.")  # fmt: skip
    if settings.device == "cuda" and settings.precision == "float32":
        raise UserError(f"{told} with --precision float32: products in eight bits are summed to bfloat16. Leave one of them out.")
    if (settings.top_p, settings.top_k, settings.min_p) != (1.0, 0, 0.0) and not settings.uncorrected:
        raise UserError(f"{told} with --top-p, --top-k or --min-p: recorded log-probabilities are of the truncated distribution, "
                        "and the correction would count what was cut off as well. Leave those out, or --uncorrected to see "
                        "what happens.")  # fmt: skip
    if not settings.uncorrected and not all(map(corrects_for_age, phases)):
        name = next(each.name for each in phases if not corrects_for_age(each))
        raise UserError(f"{told} with {name}, whose ratio does not know who sampled: what eight bits wrote would count as if the "
                        f"policy had. Take {method.name}+asyncflow, which corrects for it, or --uncorrected to see what "
                        "happens.")  # fmt: skip
    parts = [part for each in phases for _, part in each.parts() if getattr(part, "takes_recorded_for_policys", False)]
    if parts and not settings.uncorrected:
        raise UserError(f"{told}: {type(parts[0]).__name__} of {method.name} takes recorded log-probabilities for the policy's "
                        "own, from which eight bits are as far as some learning. Leave it out, or --uncorrected to see what "
                        "happens.")  # fmt: skip
    if settings.device != "cuda":
        warnings.warn(Remark(f"{told} on a CPU computes what a GPU would, and takes longer than without it."), stacklevel=2)


def check_card(settings: Settings, card: Card) -> None:
    """Refuses a GPU that does not multiply in eight bits."""
    if settings.sampling_precision == "auto" or not card.on_gpu or card.capability is None or card.capability >= FP8_FROM:
        return
    major, minor = card.capability
    told = f"--sampling-precision {settings.sampling_precision}"
    raise UserError(f"{told}: the {card.name} (compute capability {major}.{minor}) is older than Ada and "
                    "multiplies nothing in eight bits. Leave it out.")  # fmt: skip


def check_can_sample(settings: Settings, name: str, body: Architecture | None) -> None:
    """Refuses a model that `transformers` computes, or whose sizes a GPU's products in eight bits do not take.

    Args:
        body: how our own decoder computes it, if it does.
    """
    if settings.sampling_precision == "auto":
        return
    told = f"--sampling-precision {settings.sampling_precision}"
    if body is None:
        raise UserError(f"{told}: {name!r} is computed by `transformers`, in the weights' own precision. Leave it out, or "
                        "take a model that is computed here: a Llama, Mistral, Qwen2, Qwen3 or Gemma.")  # fmt: skip
    config = body.model.config.get_text_config()
    sizes = (config.hidden_size, config.intermediate_size, (body.heads + 2 * body.kv_heads) * body.width)
    if settings.device == "cuda" and any(size % MULTIPLE for size in sizes):
        raise UserError(f"{told}: {name!r} has {sizes[0]} features, {sizes[1]} inside a layer and {sizes[2]} of queries, keys and "
                        f"values; products in eight bits take multiples of {MULTIPLE}. Leave it out.")  # fmt: skip
