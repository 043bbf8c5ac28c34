"""SERL's claim: from twenty demonstrations a sparse reward is learned within minutes, where SAC finds none."""

from __future__ import annotations

from typing import Any

import numpy as np
from control_bed import ENVIRONMENTS, SMALL, ControlBed, data_folder, env_steps_until, final_return, register_controllers
from harness import Claim, Result, Statement, Variant, main

REACHED = "online steps until nine of ten succeed"
ACCURACY = "accuracy of the classifier"
CLASSIFIER = {
    **SMALL,
    "models.success": "SuccessClassifier(network=MLPEnsemble(members=1, hidden=(64, 64)))",
    "reward": "LearnedSuccess()",
}
VICE = {
    f"models.success.{knob}": value
    for knob, value in {"adversarial": True, "label_smoothing": 0.2, "mixup": True, "gradient_penalty": 10.0}.items()
}
UPDATES = {"updates_per_step": 400}


def classifier_accuracy(run: Any) -> dict[str, float]:
    """On states of episodes that nobody learned from, half of them by the expert and half random: the mean over done ones and
    others. Without a classifier there is no such number."""
    import torch

    from upslope.datasets.making import make_data

    if "success" not in run.policy.networks:
        return {ACCURACY: np.nan}
    register_controllers()
    with data_folder() as folder:
        made = make_data("held-out", f"{ENVIRONMENTS}:SparseReach", "mixed:expert=0.5", 2000, 12345, out=folder)
    states, done = [], []
    for episode in made.episodes:
        states.append(episode.observations[1:])
        done.append(episode.rewards > 0)
    reached, truth = torch.from_numpy(np.concatenate(states)), np.concatenate(done)
    with torch.no_grad():
        said = (run.policy.networks["success"].answer(reached.unsqueeze(1), None, True)[0, :, 0, 0] > 0).numpy()
    return {ACCURACY: float(0.5 * said[truth].mean() + 0.5 * (~said)[~truth].mean())}


def accuracy(result: Result) -> float:
    """What `classifier_accuracy` found."""
    return float(result.extra.get(ACCURACY, np.nan))


CLAIM = Claim(
    name="serl",
    title="serl, rlpd and sac on a sparse reach with twenty demonstrations",
    about="""A point starts in one corner and is paid 1 for reaching a small disc near the opposite one, else nothing;
    random actions do not find it. About twenty demonstrations (250 steps) are given to rlpd and serl. The recipe's claim is
    success within some thousand steps, where SAC has none. Two more are not shown the reward of what they do themselves, and
    learn from the demonstrations when the task is done: by a classifier, and by VICE, which is taught that its own
    states are not.""",
    variants={
        "sac": Variant("sac", SMALL),
        "rlpd": Variant("rlpd", {**SMALL, "policy.every": 4, "models.temperature.every": 4}, UPDATES),
        "serl": Variant("serl", SMALL, UPDATES),
        "serl with a classifier": Variant("serl", CLASSIFIER, UPDATES),
        "serl with VICE": Variant("serl", CLASSIFIER | VICE, UPDATES),
    },
    bed=ControlBed("SparseReach", data="expert", data_steps=250, after=classifier_accuracy),
    settings={"steps": 20, "horizon": 100, "updates_per_step": 100, "lr": 1e-3, "minibatch": 128, "eval_problems": 20},
    measures={"success": final_return, REACHED: env_steps_until(0.9, within=2000), ACCURACY: accuracy},
    statements=[
        Statement("serl", "success above that of", "sac", "success"),
        Statement("serl", "success above", 0.9, "success"),
        Statement("serl", "fewer online steps until nine of ten succeed than", "rlpd", REACHED, higher=False),
        Statement("serl with a classifier", "success above", 0.9, "success"),
        Statement("serl with a classifier", "accuracy above", 0.95, ACCURACY),
        Statement("serl with VICE", "success above", 0.9, "success"),
    ],
    seeds=5,
    curves={"return": "success"},
    chosen="""nothing was tried; four updates for a step, as serl's critics have.""",
)

if __name__ == "__main__":
    main(CLAIM)
