"""The two sides of a row of DPO: this library's learner, and TRL's ``DPOTrainer``.

Both learn from the same ids in the same order: a pair's prompt, its chosen and its rejected answer, one update on a batch, the loss
on sums of log-probabilities against the model as it began, fused AdamW. Measured with a learning rate of next to nothing, as the
other rows are; that the loss is the same is seen before, over the first updates with a real one.
"""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sft_sides import WORDS, SftWork, free_gpu, learner_of, trl_arguments
from sides import Clock, Setting, set_threads
from text_sides import LR
from text_work import ALPHABET, Sizes

from upslope.tasks.text import Problem

BETA = 0.1
LEARNED = (1e-3, 3)
"""Learning rate and number of the updates over which the two losses are compared: at the first both are log 2."""
APART = {"cpu": 1e-6, "cuda": 1e-2}
"""How far the two losses may be from one another. Products are in bfloat16 on a GPU, and three updates apart."""
EXACT = ("pairs", "updates", "tokens_with_gradient")


@dataclass(frozen=True)
class PairWork(SftWork):
    """An update of DPO.

    Fields:
        rows: pairs of a batch. tokens: of a prompt with one of its answers, the stop token among them.
        lr: next to nothing where the time is taken.
    """

    rows: int = 32
    lr: float = LR

    def _problem(self, number: int, policy: Any) -> Problem:
        begun = super()._problem(number, policy)
        return replace(begun, answer="", info={"chosen": begun.answer, "rejected": self._other(number, policy, begun)})

    def _other(self, number: int, policy: Any, begun: Problem) -> str:
        """An answer of the same length, another one from its first token on."""
        rng = np.random.default_rng([self.seed, number, 1])
        if self.model == "tiny":
            return "".join(rng.choice([letter for letter in ALPHABET if letter != begun.answer[0]], len(begun.answer)))
        if self.model == "random":
            return " ".join(f"w{token}" for token in rng.integers(3, Sizes().vocabulary, self.tokens - 1 - self.prompt_tokens))
        return "".join(f" {word}" for word in rng.choice(WORDS, len(begun.answer.split())))

    def triples(self, policy: Any) -> list[dict[str, list[int]]]:
        """Prompt, chosen and rejected ids as our side makes them."""
        problems, stop = self.problems(policy), min(policy.stop_ids)
        prompts = policy.encode_all([problem.prompt for problem in problems])

        def ids(text: str) -> list[int]:
            return [*policy.tokenizer(text, add_special_tokens=False).input_ids, stop]

        return [
            {"prompt_ids": prompt, "chosen_ids": ids(problem.info["chosen"]), "rejected_ids": ids(problem.info["rejected"])}
            for prompt, problem in zip(prompts, problems, strict=True)
        ]


# -- our side --------------------------------------------------------------------------------------------------------------


def run_ours(clock: Clock, given: PairWork, setting: Setting) -> None:
    """Steps of `PolicyGradient`: texts to ids, rows, both models' forward, backward, optimiser."""
    from upslope.runtime.threads import use_threads

    use_threads(setting.threads)
    learner = make_learner(given)
    clock.ready()
    for step in itertools.count(1):
        metrics = learner.step(step)
        learned = round(metrics["learning"] * metrics["tokens"])
        clock.tick(pairs=metrics["samples"] / 2, updates=metrics["updates"], tokens_with_gradient=learned, loss=metrics["loss"])


def make_learner(given: PairWork) -> Any:
    """A learner at its first step."""
    from upslope.methods import find
    from upslope.rollout.pairs import PairRollout

    return learner_of(given, find("dpo").with_knobs({"surrogate.beta": BETA}), PairRollout, samples=2, lr=given.lr)


# -- the other side --------------------------------------------------------------------------------------------------------


def run_trl(clock: Clock, given: PairWork, setting: Setting) -> None:
    """Steps of TRL's trainer, from the end of one to the end of the next. Its ids are made before, as it makes them itself."""
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"  # it would ask the network
    set_threads(setting)
    make_trl(clock, given).train()


def make_trl(clock: Clock | None, given: PairWork, seen: list[float] | None = None, steps: int = 10**6) -> Any:
    """A trainer that goes on until the clock ends it, or for some steps, with the loss of each."""
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import DPOConfig, DPOTrainer

    policy = given.policy()

    class Counting(DPOTrainer):
        """Knows the loss it just computed and for how many tokens."""

        def _prepare_dataset(self, dataset: Any, *_: Any) -> Any:
            return dataset

        def compute_loss(self, model: Any, inputs: dict[str, Any], *arguments: Any, **named: Any) -> Any:
            self.learned = inputs["completion_mask"].sum()
            loss = super().compute_loss(model, inputs, *arguments, **named)
            self.last_loss = loss.detach()
            return loss

    class Ticking(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.updates = state.global_step
            if clock is not None:
                clock.ready()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            done, self.updates = state.global_step - self.updates, state.global_step
            if seen is not None:
                seen.append(float(trainer.last_loss))
            if clock is not None:
                clock.tick(pairs=given.rows, updates=done, tokens_with_gradient=int(trainer.learned), loss=float(trainer.last_loss))

    trainer = Counting(
        model=policy.model,
        ref_model=given.policy().model,
        processing_class=policy.tokenizer,
        args=DPOConfig(
            **trl_arguments(given, given.lr) | {"max_steps": steps},
            per_device_train_batch_size=given.rows,
            max_length=given.tokens,
            beta=BETA,
        ),
        train_dataset=Dataset.from_list(given.triples(policy)),
        callbacks=[Ticking()],
    )
    return trainer


# -- before the clock ------------------------------------------------------------------------------------------------------


def first_losses(given: PairWork) -> tuple[list[float], list[float]]:
    """The losses of the two sides over the first updates, at a learning rate with which they move."""
    lr, updates = LEARNED
    moving = replace(given, lr=lr)
    learner, seen = make_learner(moving), []
    ours = [float(learner.step(step)["loss"]) for step in range(1, updates + 1)]
    make_trl(None, moving, seen, updates).train()
    del learner
    free_gpu()
    return ours, seen


def apart(ours: list[float], theirs: list[float], device: str) -> bool:
    """Whether the two sides do not compute the same."""
    return max(abs(one - other) for one, other in zip(ours, theirs, strict=True)) > APART[device]
