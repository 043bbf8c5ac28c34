"""What a learner does in four steps on a table of logits, as a few numbers: `tests/learners/test_learner_values.py` pins them."""

from __future__ import annotations

import math
from typing import Any

import tables  # noqa: F401  (finds the beds)
from beds import GoodArms, TableBed, TablePolicy, TableRollout
from part_values import fingerprint

from upslope.learners.policy_gradient import PolicyGradient
from upslope.learners.rollout_record import rollout_record
from upslope.methods import catalogue, find
from upslope.runtime.settings import Settings
from upslope.setting_up import set_up
from upslope.types import Method

Values = dict[str, float]
NOT_ON_TABLES = {
    *("bupo", "minirl-r2", "t-ppo", "vppo", "pcl", "evol-rl"),
    *("sft", "otr", "fdiv-sft", "cap-cpt", "ghpo", "scaf-grpo", "expo-explain", "poro", "eva", "clpo"),
    *("dpo", "ipo", "simpo", "kto", "sppo", "inpo", "spo-minimax", "nash-md"),
    *("dynamicpo", "bt-rm", "pair-rm", "opa-dpo", "seppo", "mcts-dpo", "tp-llama", "itool"),
}
"""These look into a language model, at its prompts or at windows of its answers; or they need texts: solutions, documents, prompts
with hints, problems made from others, pairs, answers that are compared."""
STEPS = 4


def learners() -> dict[str, tuple[Method, dict[str, Any]]]:
    """Each method on tables with settings that make it do something; and a few with others."""
    found: dict[str, tuple[Method, dict[str, Any]]] = {
        name: (method, {})
        for name, method in catalogue().items()
        if name not in NOT_ON_TABLES and method.learner == "policy-gradient"
    }
    grpo = find("grpo")
    found["grpo in one update"] = grpo, {"passes": 1, "updates_per_step": 1, "watch_kl": False, "schedule": "constant"}
    found["grpo by a cosine, unclipped"] = grpo, {"schedule": "cosine", "grad_clip": 0.0, "lr_floor": 0.2}
    found["dapo, not recorded"] = find("dapo"), {"record": "none"}
    return found


def table_values(name: str) -> Values:
    """The metrics of the last step, and all that the four steps left behind."""
    method, changed = learners()[name]
    settings = {
        "lr": 0.1, "steps": 6, "warmup": 2, "passes": 2, "updates_per_step": 2, "adam_eps": 1e-2, "weight_decay": 0.02,
        "grad_clip": 0.3, "watch_kl": True, "lr_floor": 0.1, "schedule": "linear", **changed,
    }  # fmt: skip
    bed = TableBed(
        GoodArms(good=2), contexts=4, vocabulary=5, positions=4, stop=True, spread=0.7, items=2, known=(0.1, 0.3), sampler_noise=0.1
    )
    policy = TablePolicy(bed, seed=1)
    policy.token_budget = lambda: 20  # several slices, the last of them smaller
    for model, part in method.models:
        policy.add_head(model, part.head(), 0)
    sizes = Settings(tasks_per_step=3, samples_per_task=4, seed=5, **settings)
    made = PolicyGradient(method, policy, TableRollout(policy, 3, 4, seed=5), sizes, policy.frozen_copy())
    return _steps(made)


def control_values(method: str) -> Values:
    """The same for updates on single decisions."""
    sizes = Settings(
        envs=2, horizon=24, steps=6, passes=2, minibatch=7, eval_problems=1, threads=1, adam_eps=1e-2, warmup=2, lr=3e-3
    )
    made = set_up(find(method), "gym:CartPole-v1", "tiny", sizes)
    return _steps(PolicyGradient(made.method, made.policy, made.rollout, made.settings, made.policy.frozen_copy()))


def _steps(made: PolicyGradient) -> Values:
    found: Values = {}
    for step in range(1, STEPS + 1):
        metrics = {name: value for name, value in made.step(step).items() if "second" not in name}
        weights = {name: [part.detach() for part in group] for name, group in made.policy.trainable().items()}
        found[f"weights {step}"] = fingerprint(weights)
        found[f"states {step}"] = fingerprint(_small(made.states))
        if made.traced is not None:
            found[f"trace {step}"] = fingerprint(made.traced.columns)
            told = [
                rollout_record(made.traced, lambda ids: [f"<{i}>" for i in ids], step, everything) for everything in (True, False)
            ]
            found[f"record {step}"] = fingerprint(told)
        found |= {f"{name} {step}": value for name, value in metrics.items() if step in (1, STEPS) and math.isfinite(value)}
    found["state"] = fingerprint([len(made.state()["optimizer"]["state"]), sorted(made.state()), made.references.state()])
    return {name: value for name, value in found.items() if value}


def _small(value: Any) -> Any:
    """The state without what rows carry for draws: whole 53-bit numbers, next to which nothing else would count."""
    if isinstance(value, dict):
        return {name: _small(item) for name, item in value.items() if name != "key"}
    return [_small(item) for item in value] if isinstance(value, list) else value
