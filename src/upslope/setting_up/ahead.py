"""Memory of a GPU that is taken before the first step, so that what does not fit ends there and not hours later.

The optimiser's moments would appear with the first update, the cache and the graphs of sampling with the first answers, and both
may meet a card that is full by then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from upslope.types import Sampling


def allocate_moments(optimizer: torch.optim.Optimizer) -> None:
    """The moments of an AdamW that has made no step yet, as its first step would make them; those that are there stay."""
    make_state = getattr(optimizer, "make_state", None)  # of one that holds its moments otherwise
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state[parameter]
            if make_state is not None:
                make_state(parameter)
            elif not state and parameter.requires_grad:
                fused = group["fused"] or group["capturable"]
                state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device if fused else "cpu")
                for name in ("exp_avg", "exp_avg_sq"):
                    state[name] = torch.zeros_like(parameter, memory_format=torch.preserve_format)


def allocate_cache(engine: Any, lengths: Sequence[int], samples: int, sampling: Sampling) -> None:
    """Keys and values of the largest step, and the graphs that work on them: each row of prompts of these lengths says one token.

    Args:
        engine: our own (`upslope.rollout.engines.torch_engine.TorchEngine`), which keeps them for its next call.
    """
    vocabulary = engine.policy.model.config.get_text_config().vocab_size
    prompts = [_prompt(number, length, vocabulary) for number, length in enumerate(lengths)]
    rows = len(prompts) * samples
    engine.generate(prompts, samples, sampling, torch.full((rows, sampling.max_tokens), 0.5), limits=[1] * len(prompts))
    engine.metrics()  # what it has to say of these answers is no step's


def _prompt(number: int, length: int, vocabulary: int) -> list[int]:
    """Some tokens, others for every number: equal prompts are read once."""
    found = []
    for _ in range(length):
        number, token = divmod(number, vocabulary)
        found.append(token)
    return found
