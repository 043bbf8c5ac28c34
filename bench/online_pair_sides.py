"""The two sides of a row of online DPO: this library's learner, and TRL's ``OnlineDPOTrainer``.

Both sample two answers to each prompt, let a reward say which is better, compute both models' log-probabilities, and take
one update of DPO's loss with fused AdamW.
"""

from __future__ import annotations

import os
from typing import Any

import text_sides
from sides import Clock, Setting, set_threads
from text_work import TextWork, worth

BETA = 0.1


def run_ours(clock: Clock, given: TextWork, setting: Setting) -> None:
    """Steps of `PolicyGradient` with ``online-dpo``."""
    from upslope.methods import find

    text_sides.run_ours(clock, given, setting, find("online-dpo").with_knobs({"surrogate.beta": BETA}))


def run_trl(clock: Clock, given: TextWork, setting: Setting) -> None:
    """Steps of TRL's trainer, from the end of one to the end of the next: sampling, reward, loss, backward, optimiser."""
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"  # it would ask the network
    set_threads(setting)
    make_trl(clock, given).train()


def make_trl(clock: Clock, given: TextWork) -> Any:
    """A trainer that goes on until the clock ends it."""
    from datasets import Dataset
    from sft_sides import trl_arguments
    from transformers import TrainerCallback
    from trl.experimental.online_dpo import OnlineDPOConfig, OnlineDPOTrainer

    policy, scored = given.policy(), {}

    def reward(prompts: list[Any], completions: list[Any], completion_ids: list[list[int]], **_: Any) -> list[float]:
        rewards = worth(prompts, completions)
        generated = sum(map(len, completion_ids))
        scored.update(prompts=len(prompts) // 2, samples=len(prompts), reward=sum(rewards), tokens_generated=generated)
        scored["tokens_with_gradient"] = generated  # of equally good answers too, where ours drops the pair
        return rewards

    class Ticking(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.updates = state.global_step
            clock.ready()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            done, self.updates = state.global_step - self.updates, state.global_step
            clock.tick(**scored, updates=done)

    return OnlineDPOTrainer(
        model=policy.model,
        ref_model=given.policy().model,
        reward_funcs=reward,
        args=OnlineDPOConfig(
            **trl_arguments(given, text_sides.LR),
            per_device_train_batch_size=given.prompts,
            max_new_tokens=given.max_tokens,
            max_length=4 * given.max_tokens,
            temperature=1.0,
            top_p=1.0,
            top_k=0,
            beta=BETA,
        ),
        processing_class=policy.tokenizer,
        train_dataset=Dataset.from_dict({"prompt": given.texts()}),
        callbacks=[Ticking()],
    )
