"""The two sides of a row of supervised fine-tuning: this library's learner, and TRL's ``SFTTrainer``.

Both learn from the same ids in the same order: the answers, not the prompts, one update on a batch, a mean over its tokens, fused
AdamW. The learning rate is next to nothing: all the work is done, and the loss stays what it is, so that it can be compared.
"""

from __future__ import annotations

import gc
import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from sides import BORROWED, ONE_AND_TWO, Clock, Setting, set_threads
from text_sides import LR, InOrder
from text_work import ALPHABET, POOL, Sizes, random_model

from upslope.errors import UserError
from upslope.tasks.text import Problem

PACKED = 4
"""Rows that the other side puts one behind the other into a packed one."""
APART = 1e-3
"""How far the two losses on the same rows may be from one another, relative: products are in bfloat16 on a GPU."""
WORDS = ("the", "of", "and", "to", "in", "is", "that", "it", "was", "for", "on", "are", "as", "with", "at", "be", "this")
"""A token each for most tokenizers, with a space before them."""


def padded_and_packed(each: Sequence[Setting]) -> tuple[Setting, ...]:
    """Each of them padded and packed."""
    return tuple(
        Setting(f"{one.label}, {'packed' if packed else 'padded'}", one.threads, {"packed": packed}, one.borrowed)
        for one in each
        for packed in (False, True)
    )


TRL_SETTINGS = padded_and_packed((*ONE_AND_TWO, *BORROWED))
EXACT = ("rows", "updates", "tokens_with_gradient")


@dataclass(frozen=True)
class SftWork:
    """An update of supervised fine-tuning.

    Fields:
        model: ``tiny`` (4 layers, width 128, 53 characters), ``smollm2``, or ``random``: random weights of SmolLM2's sizes.
        rows: of a batch.
        prompt_tokens: of a row that nobody learns, the start token among them (``smollm2`` has a chat template that decides).
        tokens: of a row in all, the stop token among them.
    """

    model: Literal["tiny", "smollm2", "random"] = "tiny"
    rows: int = 64
    prompt_tokens: int = 12
    tokens: int = 36
    device: str = "cpu"
    seed: int = 0

    def policy(self) -> Any:
        """The model as our library holds it; the other side takes ``.model`` and ``.tokenizer`` of it."""
        if self.model == "tiny":
            from upslope.policies.tiny import tiny

            policy = tiny(self.seed, layers=4, width=128, heads=4, alphabet=ALPHABET)
        elif self.model == "smollm2":
            from upslope.policies.smollm2 import load_smollm2

            policy = load_smollm2()
        else:
            policy = random_model(self.seed, Sizes())
        return policy.to(self.device)

    def problems(self, policy: Any) -> list[Problem]:
        """Prompts with the answers to imitate, in the order in which they are learned."""
        return [self._problem(number, policy) for number in range(POOL // self.rows * self.rows)]

    def _problem(self, number: int, policy: Any) -> Problem:
        rng = np.random.default_rng([self.seed, number])
        if self.model == "tiny":
            drawn = "".join(rng.choice(list(ALPHABET), self.tokens - 2))  # a start and a stop token are added
            return Problem(drawn[: self.prompt_tokens - 1], drawn[self.prompt_tokens - 1 :])
        if self.model == "random":
            words = [f"w{token}" for token in rng.integers(3, Sizes().vocabulary, self.tokens - 1)]
            return Problem(" ".join(words[: self.prompt_tokens]), " ".join(words[self.prompt_tokens :]))
        prompt = f"Write down what you hear, please. This is number {number % 10}."
        return Problem(prompt, "".join(f" {word}" for word in rng.choice(WORDS, self.tokens - 1 - len(policy.encode(prompt)))))

    def ids(self, policy: Any) -> list[tuple[list[int], list[int]]]:
        """Prompts and answers as our side makes them; refused if rows are not of the length they should have."""
        problems, stop = self.problems(policy), min(policy.stop_ids)
        prompts = policy.encode_all([problem.prompt for problem in problems])
        answers = [[*policy.tokenizer(problem.answer, add_special_tokens=False).input_ids, stop] for problem in problems]
        lengths = {len(prompt) + len(answer) for prompt, answer in zip(prompts, answers, strict=True)}
        if lengths != {self.tokens}:
            raise UserError(f"rows of {self.tokens} tokens are wanted, and {self.model} makes {sorted(lengths)} of these texts.")
        return list(zip(prompts, answers, strict=True))


# -- our side --------------------------------------------------------------------------------------------------------------


def run_ours(clock: Clock, given: SftWork, setting: Setting) -> None:
    """Steps of `PolicyGradient`: texts to ids, rows, forward, backward, optimiser."""
    from upslope.runtime.threads import use_threads

    use_threads(setting.threads)
    learner = make_learner(given)
    clock.ready()
    for step in itertools.count(1):
        metrics = learner.step(step)
        clock.tick(
            rows=metrics["samples"],
            updates=metrics["updates"],
            tokens_with_gradient=round(metrics["learning"] * metrics["tokens"]),
            loss=metrics["loss"],
        )


def make_learner(given: SftWork) -> Any:
    """A learner at its first step."""
    from upslope.methods import find
    from upslope.rollout.given import AnswerRollout

    return learner_of(given, find("sft"), AnswerRollout)


def learner_of(given: SftWork, method: Any, rollout_of: Any, samples: int = 1, lr: float = LR) -> Any:
    """A learner of rows that nobody samples, at its first step."""
    from upslope.learners.policy_gradient import PolicyGradient
    from upslope.runtime.settings import Settings
    from upslope.types import Sampling

    policy = given.policy()
    settings = Settings(
        steps=10**6, lr=lr, schedule="constant", warmup=0, tasks_per_step=given.rows, warm_start=0.0, max_tokens=given.tokens,
        watch_kl=False, device=given.device,
    ).resolved("text", given.model, max_tokens=given.tokens)  # fmt: skip
    task, sampling = InOrder(given.problems(policy), given.tokens), Sampling(max_tokens=given.tokens)
    rollout = rollout_of(task, policy, tasks=given.rows, samples=samples, sampling=sampling, seed=given.seed)
    return PolicyGradient(method, policy, rollout, settings)


# -- the other side --------------------------------------------------------------------------------------------------------


def run_trl(clock: Clock, given: SftWork, setting: Setting) -> None:
    """Steps of TRL's trainer, from the end of one to the end of the next. Its ids are made before, as it makes them itself."""
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"  # it would ask the network
    set_threads(setting)
    make_trl(clock, given, setting.options.get("packed", False)).train()


def make_trl(clock: Clock | None, given: SftWork, packed: bool) -> Any:
    """A trainer that goes on until the clock ends it."""
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import SFTTrainer

    policy = given.policy()
    rows = [
        {"input_ids": prompt + answer, "completion_mask": [0] * len(prompt) + [1] * len(answer)}
        for prompt, answer in given.ids(policy)
    ]

    class Counting(SFTTrainer):
        """Knows the loss it just computed and for how many tokens."""

        def compute_loss(self, model: Any, inputs: dict[str, Any], *arguments: Any, **named: Any) -> Any:
            self.learned = (inputs["labels"] != -100).sum()
            self.rows = (inputs["position_ids"] == 0).sum() if "position_ids" in inputs else len(inputs["labels"])
            loss = super().compute_loss(model, inputs, *arguments, **named)
            self.last_loss = loss.detach()
            return loss

    class Ticking(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.updates = state.global_step
            assert clock is not None
            clock.ready()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            done, self.updates = state.global_step - self.updates, state.global_step
            assert clock is not None
            counts = {"rows": int(trainer.rows), "tokens_with_gradient": int(trainer.learned), "loss": float(trainer.last_loss)}
            clock.tick(updates=done, **counts)

    trainer = Counting(
        model=policy.model,
        processing_class=policy.tokenizer,
        args=_trl_config(given, packed),
        train_dataset=Dataset.from_list(rows),
        callbacks=[Ticking()] if clock is not None else [],
    )
    return trainer


def _trl_config(given: SftWork, packed: bool) -> Any:
    from trl import SFTConfig

    return SFTConfig(
        **trl_arguments(given),
        per_device_train_batch_size=given.rows // (PACKED if packed else 1),
        packing=packed,
        max_length=given.tokens * (PACKED if packed else 1),
        completion_only_loss=True,
    )


def trl_arguments(given: SftWork, lr: float = LR) -> dict[str, Any]:
    """TRL's own defaults but for what makes it do the same work, and nothing that only costs time (logs, checkpoints)."""
    return {
        "output_dir": "unused",
        "max_steps": 10**6,
        "gradient_accumulation_steps": 1,
        "train_sampling_strategy": "sequential",
        "learning_rate": lr,
        "lr_scheduler_type": "constant",
        "adam_beta2": 0.95,
        "max_grad_norm": 1.0,
        "bf16": given.device == "cuda",
        "use_cpu": given.device == "cpu",
        "gradient_checkpointing": False,
        "report_to": "none",
        "logging_strategy": "no",
        "save_strategy": "no",
        "disable_tqdm": True,
        "seed": given.seed,
    }


# -- before the clock ------------------------------------------------------------------------------------------------------


def first_losses(given: SftWork) -> dict[str, float]:
    """The loss of each side on its first batch."""
    import torch

    found = {"ours": float(make_learner(given).step(1)["loss"])}
    for packed in (False, True):
        trainer = make_trl(None, given, packed)
        trainer.model.train()
        inputs = trainer._prepare_inputs(next(iter(trainer.get_train_dataloader())))
        with torch.no_grad(), trainer.compute_loss_context_manager():
            loss = trainer.compute_loss(trainer.model, inputs)
        found["packed" if packed else "padded"] = float(loss)
        del trainer, inputs, loss
        free_gpu()
    return found


def free_gpu() -> None:
    """Hands memory back that nobody needs any more, before the processes that are measured begin."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def apart(losses: dict[str, float]) -> list[str]:
    """Ways of the other side whose loss is not ours."""
    ours = losses["ours"]
    return [name for name, loss in losses.items() if abs(loss - ours) > APART * abs(ours)]
