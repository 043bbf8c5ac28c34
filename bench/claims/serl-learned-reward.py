"""SERL with a reward that it learns from the demonstrations: a classifier, and VICE."""

from __future__ import annotations

from typing import Any

import numpy as np
from control_bed import ENVIRONMENTS, SMALL, ControlBed, data_folder, env_steps_until, final_return, register_controllers
from harness import Claim, Statement, Variant, extra, main

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
    others."""
    import torch

    from upslope.datasets.making import make_data

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


CLAIM = Claim(
    name="serl-learned-reward",
    title="serl with a learned reward on a sparse reach with twenty demonstrations",
    about="""The sparse reach of `serl`, in which the reward of what the policy does itself is not shown. It learns from about
    twenty demonstrations (250 steps) when the task is done: by a classifier, and by VICE, which is taught that the policy's own
    states are not. Success is judged by the true reward, the classifiers on states of episodes that nobody learned from. With
    the true reward serl succeeds in every episode (`serl`).""",
    variants={
        "serl+classifier": Variant("serl", CLASSIFIER, UPDATES),
        "serl+vice": Variant("serl", CLASSIFIER | VICE, UPDATES),
    },
    bed=ControlBed("SparseReach", data="expert", data_steps=250, after=classifier_accuracy),
    settings={"steps": 20, "horizon": 100, "updates_per_step": 100, "lr": 1e-3, "minibatch": 128, "eval_problems": 20},
    measures={"success": final_return, REACHED: env_steps_until(0.9, within=2000), ACCURACY: extra(ACCURACY)},
    statements=[
        Statement("serl+classifier", "success above", 0.9, "success"),
        Statement("serl+classifier", "accuracy above", 0.95, ACCURACY),
        Statement("serl+vice", "success above", 0.9, "success"),
    ],
    seeds=5,
    curves={"return": "success"},
    chosen="""settings are those of `serl`. The classifier and VICE were run once for 12 steps on seed 100, to see that they
    learn.""",
)

if __name__ == "__main__":
    main(CLAIM)
