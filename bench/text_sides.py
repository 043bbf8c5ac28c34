"""The two sides of a GRPO row: this library's learner, and TRL's ``GRPOTrainer``.

Both sample groups, score them, take one on-policy update with the clipped loss averaged per answer, without a KL term, and move
with fused AdamW. The learning rate is next to nothing: all the work is done, and the statistics of the answers stay.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from typing import Any

from sides import BORROWED, ONE_AND_TWO, Clock, Setting, set_threads
from text_work import TextWork, worth

from upslope.tasks.text import Problem, Scores, Split, TextTask

LR = 1e-9
TRL_SETTINGS = (*ONE_AND_TWO, *BORROWED)
EXACT = ("prompts", "samples", "updates")
"""Counts of a GRPO step that the work fixes."""


def run_ours(clock: Clock, given: TextWork, setting: Setting, method: Any = None) -> None:
    """Steps of `PolicyGradient` on the same model, prompts and reward; of GRPO, unless told otherwise."""
    from upslope.runtime.threads import use_threads

    use_threads(setting.threads)
    learner, task = make_learner(given, method)
    clock.ready()
    for step in itertools.count(1):
        metrics = learner.step(step)
        clock.tick(
            **task.scored,
            updates=metrics["updates"],
            tokens_generated=metrics["tokens"],
            tokens_with_gradient=round(metrics["learning"] * metrics["tokens"]),
        )


def make_learner(given: TextWork, method: Any = None) -> tuple[Any, AskedInOrder]:
    """A learner at its first step, and its task, which knows what was last scored."""
    from upslope.learners.policy_gradient import PolicyGradient
    from upslope.methods import find
    from upslope.rollout.text import TextRollout
    from upslope.runtime.settings import Settings
    from upslope.types import Sampling

    chosen: dict[str, Any] = {
        "steps": 10**6, "lr": LR, "schedule": "constant", "warmup": 0, "tasks_per_step": given.prompts, "warm_start": 0.0,
        "samples_per_task": given.samples, "max_tokens": given.max_tokens, "watch_kl": False, "device": given.device,
    }  # fmt: skip
    resolved = Settings(**chosen | dict(given.settings)).resolved("text", given.model, max_tokens=given.max_tokens)
    task, policy = AskedInOrder(given), given.policy()
    if given.device == "cuda":
        resolved = cut_as_planned(policy, method or find("grpo"), resolved, [given.prompt_tokens] * given.prompts)
    rollout = TextRollout(
        task,
        policy,
        tasks=given.prompts,
        samples=given.samples,
        sampling=Sampling(max_tokens=given.max_tokens),
        seed=given.seed,
    )
    return PolicyGradient(method or find("grpo").derive(regularize=None), policy, rollout, resolved), task


def cut_as_planned(policy: Any, method: Any, settings: Any, prompts: Sequence[int]) -> Any:
    """The settings with slices and recomputed layers as a run's plan has them on this GPU; the policy is told."""
    from dataclasses import replace

    from upslope.policies.model_shape import ModelShape
    from upslope.sizes.card import Card
    from upslope.sizes.settle import settled
    from upslope.sizes.work import Work

    layout = ModelShape.of(policy.model, ours=True)
    planned = settled(layout, Work.of(settings, method, settings.max_tokens, list(prompts)), Card.here("cuda"))
    policy.recompute, policy.slices.tokens = planned.layers_again(layout.layers), planned.slice_tokens or 0  # type: ignore[union-attr]
    return replace(settings, recompute=planned.recompute, slice_tokens=planned.slice_tokens)


class InOrder(TextTask):
    """Problems one after the other, as the other side takes them."""

    separator = ""

    def __init__(self, problems: Sequence[Problem], limit: int):
        self.problems, self.limit, self.asked = problems, limit, 0

    @property
    def name(self) -> str:
        return "in order"

    @property
    def max_tokens(self) -> int:
        return self.limit

    def sample(self, count: int, split: Split, rng: Any) -> list[Problem]:
        chosen = [self.problems[(self.asked + number) % len(self.problems)] for number in range(count)]
        self.asked += count
        return chosen

    def score(self, problems: Sequence[Problem], responses: Sequence[str]) -> Scores:
        raise NotImplementedError("nobody samples answers here")

    def describe(self) -> str:
        return "The problems of a measurement."


class AskedInOrder(InOrder):
    """The prompts of the work, with what answers to them are worth."""

    def __init__(self, given: TextWork):
        super().__init__([Problem(text) for text in given.texts()], given.max_tokens)
        self.scored: dict[str, float] = {}
        """Counts of the step that was scored last."""

    def score(self, problems: Sequence[Problem], responses: Sequence[str]) -> Scores:
        prompts = [problem.prompt for problem in problems]
        rewards = worth(prompts, responses)
        self.scored = {"prompts": _groups(prompts), "samples": len(responses), "reward": sum(rewards)}
        return Scores(rewards, [False] * len(rewards))


def _groups(prompts: Sequence[str]) -> int:
    """Neighbours with the same prompt are a group."""
    return sum(1 for _ in itertools.groupby(prompts))


def run_trl(clock: Clock, given: TextWork, setting: Setting) -> None:
    """Steps of TRL's trainer, from the end of one to the end of the next: sampling, reward, loss, backward, optimiser."""
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"  # it would ask the network
    set_threads(setting)
    make_trl(clock, given, **setting.options).train()


def make_trl(clock: Clock, given: TextWork, micro_batches: int = 1, checkpointing: bool = False) -> Any:
    """A trainer that goes on until the clock ends it.

    Args:
        micro_batches: in how many pieces it goes through the rows of an update.
        checkpointing: whether it computes activations again in the backward pass.
    """
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOTrainer

    policy = given.policy()
    chat = bool(getattr(policy.tokenizer, "chat_template", None))
    texts: list[Any] = given.texts()
    prompts = [[{"role": "user", "content": text}] for text in texts] if chat else texts
    scored: dict[str, float] = {}

    def reward(prompts: list[Any], completions: list[Any], completion_ids: list[list[int]], **_: Any) -> list[float]:
        asked = [prompt[-1]["content"] for prompt in prompts] if chat else prompts
        rewards = worth(asked, [each[0]["content"] for each in completions] if chat else completions)
        scored.update(prompts=_groups(asked), samples=len(asked), reward=sum(rewards))
        scored["tokens_generated"] = sum(map(len, completion_ids))
        return rewards

    class Counting(GRPOTrainer):
        """Knows for how many tokens the losses since it was last asked have a gradient."""

        learned: Any = 0

        def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Any:
            self.learned += (inputs["completion_mask"] * (inputs["advantages"] != 0).unsqueeze(1)).sum()
            return super()._compute_loss(model, inputs)

    class Ticking(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.updates = state.global_step
            clock.ready()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            done, self.updates = state.global_step - self.updates, state.global_step
            learned, trainer.learned = int(trainer.learned), 0
            clock.tick(**scored, updates=done, tokens_with_gradient=learned)

    trainer = Counting(
        model=policy.model,
        processing_class=policy.tokenizer,
        reward_funcs=reward,
        args=_trl_config(given, micro_batches, checkpointing),
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        callbacks=[Ticking()],
    )
    return trainer


def _trl_config(given: TextWork, micro_batches: int, checkpointing: bool) -> Any:
    """TRL's own defaults but for what makes it do the same work, and nothing that only costs time (logs, checkpoints)."""
    from trl import GRPOConfig

    return GRPOConfig(
        output_dir="unused",
        max_steps=10**6,
        per_device_train_batch_size=given.prompts * given.samples // micro_batches,
        gradient_accumulation_steps=micro_batches,
        num_generations=given.samples,
        num_iterations=1,
        max_completion_length=given.max_tokens,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        beta=0.0,
        loss_type="grpo",
        scale_rewards="group",
        learning_rate=LR,
        lr_scheduler_type="constant",
        adam_beta2=0.95,
        max_grad_norm=1.0,
        shuffle_dataset=False,
        bf16=given.device == "cuda",
        use_cpu=given.device == "cpu",
        gradient_checkpointing=checkpointing,
        report_to="none",
        logging_strategy="no",
        save_strategy="no",
        disable_tqdm=True,
        seed=given.seed,
    )
