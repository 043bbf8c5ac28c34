"""Reward models by the runs that trained them: ``rm:runs/rm``, with the digest of what was there when a run began to use it."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from upslope.errors import UserError
from upslope.plain_data import JsonDict
from upslope.policies.loading import from_folder
from upslope.policies.reward_model import RewardModel
from upslope.policies.tokenization import PromptFormat
from upslope.policies.trained import is_run, trained_weights
from upslope.runtime.reward_text import MODEL_PREFIX
from upslope.runtime.run_folder import RunFolder
from upslope.types import Head

PREFIX = MODEL_PREFIX
KINDS = {"model.AnswerScore": False, "model.PairScore": True}
"""The heads that make a run a reward model, as ``run.toml`` names them; whether they read pairs."""
DIGITS = 12
TRAIN = "upslope train bt-rm --task pairs.jsonl --out runs/rm"
OF_LEARNER = ("learner.", "run.json", "best.json")
"""Files of a checkpoint that going on needs, and using it does not."""


def scoring_head(table: JsonDict) -> tuple[str, bool] | None:
    """Of a run's table, the name of its head that scores and whether that reads pairs; nothing if it is no reward model."""
    method = table.get("method")
    models = method.get("models") if isinstance(method, dict) else None
    for name, model in (models if isinstance(models, dict) else {}).items():
        kind = str(model.get("part", "")) if isinstance(model, dict) else ""
        if kind in KINDS:
            return str(name), KINDS[kind]
    return None


def is_reward_model(spec: str | Path) -> bool:
    """Whether a folder is a run that trained a reward model."""
    return is_run(str(spec)) and scoring_head(RunFolder.open(Path(spec).expanduser()).table()) is not None


def refuse_reward_model(spec: str | Path, what: str) -> None:
    """Refuses to let a reward model answer.

    Args:
        what: was asked of it, with the name of the run: ``upslope try runs/rm``.
    """
    if is_reward_model(spec):
        raise UserError(f"{what}: this run trained a reward model, which scores answers and writes none. Use it as "
                        f"--reward rm:{spec}, or to rank: upslope eval RUN --best-of 8 --by rm:{spec}.")  # fmt: skip


@dataclass(frozen=True)
class RewardRun:
    """A run that trained a reward model.

    Fields:
        path: its folder.
        digest: the first digits of that of its weights, where a run that uses it has written them down; else empty.
    """

    path: Path
    digest: str = ""

    @classmethod
    def parse(cls, text: str) -> RewardRun:
        """``runs/rm`` or ``runs/rm@0123456789ab``, with or without ``rm:`` before it, looked at.

        Raises:
            UserError: if there is no such run, it trained no reward model, or another one than was used before.
        """
        found = re.fullmatch(rf"(?P<path>.+?)(?:@(?P<digest>[0-9a-f]{{{DIGITS}}}))?", text.removeprefix(PREFIX).strip())
        if found is None:
            raise UserError(
                f"the reward {text!r} names no run. Give the folder of one that trained a reward model, as in rm:runs/rm."
            )
        run = cls(Path(found["path"]).expanduser().absolute(), found["digest"] or "")
        run._check()
        return run

    def _check(self) -> None:
        if not is_run(str(self.path)):
            moved = "It was moved or deleted since it was first used: put it back" if self.digest else f"Train one: {TRAIN}"
            raise UserError(f"the reward model rm:{self.path} cannot be found: there is no run in that folder. {moved}.")
        table = RunFolder.open(self.path).table()
        if scoring_head(table) is None:
            method = table.get("method")
            name = method.get("name", "?") if isinstance(method, dict) else "?"
            raise UserError(f"rm:{self.path} is a run of {name}, which scores no answers. Give one of bt-rm or pair-rm: {TRAIN}.")
        if self.digest and (now := self.current_digest()) != self.digest:
            raise UserError(f"the reward model rm:{self.path} has changed since it was first used: its weights had the digest "
                            f"{self.digest} and have {now}. Put the old ones back, or begin a new run.")  # fmt: skip

    def checkpoint(self) -> Path:
        """Its best checkpoint where that was kept, else its last."""
        return trained_weights(str(self.path))

    def current_digest(self) -> str:
        """Of the weights, the tokenizer and the configuration that are there now."""
        files = RunFolder.open(self.path).reader(self.checkpoint())
        known = {name: str(digest["sha256"]) for name, digest in (files.digests or {}).items() if not name.startswith(OF_LEARNER)}
        return hashlib.sha256("\n".join(f"{name} {known[name]}" for name in sorted(known)).encode()).hexdigest()[:DIGITS]

    def kept(self) -> str:
        """As ``run.toml`` names it: right from every folder, and for these weights alone."""
        return f"{PREFIX}{self.path}@{self.digest or self.current_digest()}"

    def prompt_format(self) -> PromptFormat:
        """How it was given prompts while it learned."""
        settings = RunFolder.open(self.path).table().get("settings", {})
        return PromptFormat.parse(str(settings.get("system", "")), str(settings.get("template", "")))

    def load(self, device: str = "cpu") -> RewardModel:
        """Trunk and head, held against their digests."""
        folder = RunFolder.open(self.path)
        files = folder.reader(self.checkpoint())
        for name in files.names():
            files.check(name)  # before anything is made of it
        head = scoring_head(folder.table())
        assert head is not None
        policy = from_folder(files.folder, self.path.name)
        policy.plain = bool(folder.table().get("settings", {}).get("plain", False))
        policy.prompt_format = self.prompt_format()
        policy.add_head(head[0], Head(), 0)
        policy.heads[head[0]].load_state_dict(files.read_tensors(f"head-{head[0]}.safetensors"))
        policy.model.requires_grad_(False)
        return RewardModel(f"rm:{self.path}", policy.to(device), *head)
