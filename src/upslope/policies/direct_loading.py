"""Direct loading: the weights of a folder read tensor by tensor to where they will be, in the precision they will be held in.

`transformers` maps the files into memory and makes a model of them beside that, on the CPU; only float32 that stays there remains
in the mapped file. Here it is given stand-ins that take no memory: it makes the model, ties weights, fills buffers and says what is
missing as ever, and then each stand-in is replaced by the tensor it stands for. Where a stand-in is not found again as it was given
(weights that are converted when they are loaded, tied weights of which a file has both), the folder is left to `transformers`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from upslope.policies.forward.architecture import architecture
from upslope.policies.model_files import WEIGHTS, quiet_loading, weight_files
from upslope.runtime.tensor_files import TensorFile

HALVES = (torch.bfloat16, torch.float16)


def load_directly(folder: Path, config: Any, device: str | torch.device, dtype: torch.dtype) -> Any | None:
    """The model in a folder of safetensors files; None where it must be loaded by `transformers`.

    Args:
        config: as it is in the folder.
        device: where its weights shall be, of models that are computed here; others stay on the CPU, in float32.
        dtype: what they are held in there.
    """
    kind = _kind(config)
    if kind is None:
        return None
    with ExitStack() as opened:
        try:
            files = [opened.enter_context(TensorFile(folder / name)) for name in _files(folder)]
        except (OSError, ValueError):  # what is wrong with it is told by whoever reads it next
            return None
        held = {name: file for file in files for name in file.entries}
        elsewhere = torch.device(device).type != "cpu" or dtype != torch.float32
        if not held or not (elsewhere or any(file.entries[name][0] in HALVES for name, file in held.items())):
            return None
        stand_ins = {name: _stand_in(*file.entries[name][:2]) for name, file in held.items()}
        model = _model_of(kind, config, stand_ins)
        wanted = None if model is None else _found_again(model, stand_ins)
        if model is None or wanted is None:
            return None
        if elsewhere and architecture(model) is None:
            device, dtype = "cpu", torch.float32
        largest, on_gpu = max(file.size(name) for name, file in held.items()), torch.device(device).type == "cuda"
        memory = torch.empty(largest, dtype=torch.uint8, pin_memory=on_gpu)
        for name, tensor in wanted.items():
            read = held[name].read(name, memory)
            if on_gpu:  # asked for place and precision at once, torch converts on the CPU first: 8 s for 3 billion weights
                read = read.to(device)
            tensor.data = read.to(device, dtype if tensor.is_floating_point() else tensor.dtype, copy=not on_gpu)
    model.config.name_or_path = model.name_or_path = str(folder)
    if model.can_generate():
        model.generation_config = _generation_config(folder)
    return model.to(device)


def _kind(config: Any) -> Any | None:
    """The class of a model, where its configuration names one of those of `transformers` and nothing about its weights."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    special = ("quantization_config", "auto_map", "transformers_weights", "fusion_config")
    if any(getattr(config, name, None) is not None for name in special):
        return None
    kind = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    return kind if isinstance(kind, type) else None


def _files(folder: Path) -> list[str]:
    """Those that `transformers` would read: one file comes before several."""
    return [WEIGHTS] if (folder / WEIGHTS).is_file() else weight_files(folder)


def _stand_in(dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """A tensor of this shape that takes the memory of one number: a float of any kind in float32, which nobody then converts."""
    return torch.zeros((), dtype=torch.float32 if dtype in HALVES else dtype).expand(shape)


def _model_of(kind: Any, config: Any, stand_ins: Mapping[str, Tensor]) -> Any | None:
    """The model with these weights, if they are just what it needs."""
    with quiet_loading():
        model, report = kind.from_pretrained(
            None, config=config, state_dict=dict(stand_ins), dtype=torch.float32, output_loading_info=True,
            ignore_mismatched_sizes=True,
        )  # fmt: skip
    return None if any(report[what] for what in ("missing_keys", "unexpected_keys", "mismatched_keys")) else model


def _found_again(model: Any, stand_ins: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
    """The parameters and buffers of a model by the names that files have them under.

    None where a parameter is not one tensor of a file as it is, or a tensor is left over, such as one of two that are to be tied
    and may differ.
    """
    if getattr(model, "_weight_conversions", None) != []:
        return None
    names, found = {tensor.data_ptr(): name for name, tensor in stand_ins.items()}, dict[str, Tensor]()
    for tensor in model.state_dict(keep_vars=True).values():
        name = names.get(tensor.data_ptr())
        if name is None or tensor.shape != stand_ins[name].shape or found.setdefault(name, tensor) is not tensor:
            return None
    return found if len(found) == len(stand_ins) else None


def _generation_config(folder: Path) -> Any:
    """How the model in a folder wants to be sampled from; our own sampling takes its stop tokens from there."""
    from transformers import GenerationConfig

    try:
        return GenerationConfig.from_pretrained(folder, local_files_only=True)
    except OSError:  # then it is part of the model's own configuration
        inside: dict[str, Any] = {"config_file_name": "config.json", "_from_model_config": True}
        return GenerationConfig.from_pretrained(folder, local_files_only=True, **inside)
