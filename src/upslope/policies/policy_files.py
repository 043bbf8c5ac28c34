"""The files of a language-model policy: whole for `transformers`, or adapters for peft, with the heads beside them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from upslope.errors import UserError
from upslope.policies.adapter_files import BESIDE, Base, holds_model, own_file, read_adapters, tokenizer_files, write_adapters
from upslope.policies.adapters import adapters, folded, unadapted
from upslope.policies.model_files import ModelFiles, read_model
from upslope.runtime.checkpoint_files import CheckpointReader, CheckpointWriter, as_reader, saving

VALUE_FILE = "value.safetensors"


class PolicyFiles:
    """What a `LanguageModel` writes and reads."""

    name: str
    model: Any
    tokenizer: Any
    heads: dict[str, nn.Module]
    adapted: bool
    packed: bool
    before_packing: dict[str, Tensor]
    source: Path | None
    base: Base | None
    _files: ModelFiles
    _tokenizer_files: dict[str, bytes]

    def add_value_head(self, seed: int) -> None:
        raise NotImplementedError

    def save(self, folder: Path | CheckpointWriter) -> None:
        """Writes a folder that ``transformers`` loads with ``from_pretrained``, and the heads beside it.

        Of a policy with adapters it is a folder of peft's: the adapters alone, and where the model is that they belong to. One that
        is in no folder is written beside them, as ``base``. Each file is written whole or not at all; other files stay.
        """
        base = self._base_from(Path(folder)) if self.adapted and not isinstance(folder, CheckpointWriter) else self.base
        with saving(folder) as files:
            if self.adapted:
                self._save_adapters(files, base)
            else:
                self._files.save(self.model, self.tokenizer, files)
            self._save_heads(files)
        if not isinstance(folder, CheckpointWriter):
            for old in Path(folder).glob(_head_file("*")):
                if old.name not in files.digests:
                    old.unlink()

    def save_merged(self, folder: Path | CheckpointWriter) -> None:
        """As `save`, always the whole model: adapters are folded into the weights. Without heads."""
        with saving(folder) as files:
            self._files.save(self.model, self.tokenizer, files, folded(self.model) if self.adapted else None)

    def save_base(self, files: CheckpointWriter) -> None:
        """The model as it is without its adapters; weights that lie in files are linked."""
        weights, own = unadapted(self.model) | self.before_packing, ModelFiles()
        if self.source is None or not own.link(self.model, self.tokenizer, files, self.source, weights):
            if self.packed and not self.before_packing:
                raise UserError(f"{self.name!r} holds its weights in four bits, and what they were before is not here any more: "
                                f"take the model in '{self.source}'.")  # fmt: skip
            own.save(self.model, self.tokenizer, files, weights)

    def save_as_loaded(self, files: CheckpointWriter) -> None:
        """As `save`, of weights that nothing has changed since they were read: their files are linked where that can be."""
        if self.adapted or self.source is None or not self._files.link(self.model, self.tokenizer, files, self.source):
            self.save(files)
            return
        self._save_heads(files)

    def _base_from(self, folder: Path) -> Base:
        """The model that the adapters belong to, from a folder of the user's; where it is in none, it is written below this one."""
        if self.base is None and self.source is not None:
            self.base = Base.at(self.source)
        beside = folder.absolute() / BESIDE
        if self.base is None:
            with saving(beside) as files:
                self.save_base(files)
            self.base = Base.at(beside)
        return replace(self.base, within=BESIDE if self.base.folder == beside else "")

    def _save_adapters(self, files: CheckpointWriter, base: Base | None) -> None:
        if base is None:
            raise UserError(f"the adapters of {self.name!r} cannot be saved: nobody has said where its own weights are.")
        self._tokenizer_files = self._tokenizer_files or tokenizer_files(self.tokenizer)
        base = replace(base, precision="nf4" if self.packed else "")
        write_adapters(adapters(self.model), self.model.peft_config["default"], self._tokenizer_files, base, files)

    def _save_heads(self, files: CheckpointWriter) -> None:
        for name, head in self.heads.items():
            files.write_tensors(_head_file(name), head.state_dict())

    def load(self, folder: Path | CheckpointReader) -> None:
        """Takes the weights `save` wrote, in place and bit for bit, so that optimizers keep their parameters.

        Raises:
            Damaged: if the files are not what was written.
        """
        files = as_reader(folder)
        where = files.folder
        if not holds_model(where):
            raise UserError(f"no saved model in '{where}': it has no config.json and no adapter_config.json.")
        if self.adapted:  # the model's own weights never moved
            if not own_file(files):
                raise UserError(f"'{where}' holds no adapters, but {self.name!r} has some to load.")
            saved, own = read_adapters(files), adapters(self.model)
        elif "config.json" not in files:
            raise UserError(f"'{where}' holds adapters alone, and {self.name!r} has none to load. Load the folder as a model.")
        else:
            saved, own = read_model(self.model, files), self.model.state_dict()
        if wrong := [key for key in own if key not in saved or saved[key].shape != own[key].shape]:
            raise UserError(f"'{where}' holds another model than {self.name!r}: {wrong[0]!r} is missing or has another shape.")
        missing = [name for name in self.heads if _head_file(name) not in files]
        if missing:
            raise UserError(f"'{where}' holds no {_head_file(missing[0])}, but {self.name!r} has a head {missing[0]!r} to load.")
        if _head_file("value") in files:
            self.add_value_head(0)
        heads = {name: files.read_tensors(_head_file(name)) for name in self.heads}
        with torch.no_grad():
            for key, tensor in own.items():
                tensor.copy_(saved[key])
        for name, head in self.heads.items():
            head.load_state_dict(heads[name])


def _head_file(name: str) -> str:
    return VALUE_FILE if name == "value" else f"head-{name}.safetensors"
