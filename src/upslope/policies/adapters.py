"""Low-rank adapters inside a model: put there by peft, learned in place of the model's own weights, folded into them for others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from upslope.errors import MissingExtra, install_extra
from upslope.policies.forward.blocks import matrix_of


def add_adapters(model: Any, rank: int, seed: int) -> None:
    """Adapters on every projection but the head, which alone learn from now on; they start without effect.

    Raises:
        MissingExtra: if peft is not installed.
    """
    try:
        from peft import inject_adapter_in_model
    except ImportError:
        raise MissingExtra("peft is", install_extra("lora")) from None
    head, device = model.get_output_embeddings(), next(model.parameters()).device
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear) and module is not head]
    names = sorted({name.rsplit(".", 1)[-1] for name in linear})
    # Adapters draw their weights from the global generator: it is borrowed and put back.
    with torch.random.fork_rng(devices=[]), _out_of_the_way(model):
        torch.manual_seed(seed)
        inject_adapter_in_model(lora_config(rank, names), model)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_" in name)
    model.to(device).eval()


@contextmanager
def _out_of_the_way(model: Any) -> Iterator[None]:
    """Without the weights, if they are not in float32 on the CPU: peft would give what it draws their precision and place."""
    held = [(own, own.data) for own in model.parameters() if own.device.type != "cpu" or own.dtype != torch.float32]
    try:
        for own, _ in held:
            own.data = torch.zeros(1).expand(own.shape)
        yield
    finally:
        for own, weights in held:
            own.data = weights


def lora_config(rank: int, names: list[str]) -> Any:
    """peft's settings of adapters on the modules of these names. Twice the rank as alpha scales them by 2 at any rank: the default
    learning rate falls with the rank in exchange (`upslope.runtime.default_lr.LORA_STEP`)."""
    from peft import LoraConfig

    return LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=names)


def adapters(model: Any) -> dict[str, Tensor]:
    """The adapters' own weights, by name."""
    return {name: value for name, value in model.state_dict().items() if "lora_" in name}


def unadapted(model: Any) -> dict[str, Tensor]:
    """The model's own parameters by the names they have without adapters, tied ones under their first name only."""
    named = model.named_parameters()
    return {name.replace(".base_layer.", "."): value.detach() for name, value in named if "lora_" not in name}


def layer_matrices(model: Any) -> dict[str, Tensor]:
    """Of `unadapted` the matrices that adapters are on, in the host's memory."""
    named = model.named_parameters()
    matrices = ((name, value) for name, value in named if name.endswith(".base_layer.weight"))
    return {name.replace(".base_layer.", "."): value.detach().cpu() for name, value in matrices}


def folded(model: Any) -> dict[str, Tensor]:
    """The model's parameters as it would have them without adapters, tied ones under their first name only."""
    model = model.get_base_model() if hasattr(model, "get_base_model") else model
    modules, found = dict(model.named_modules()), {}
    for name, value in model.named_parameters():
        if "lora_" not in name:
            plain = name.replace(".base_layer.", ".")
            matrix = name.endswith(".base_layer.weight")
            found[plain] = (matrix_of(modules[plain.removesuffix(".weight")]) if matrix else value).detach().to(value.dtype)
    return found
