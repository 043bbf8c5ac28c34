"""Where no episode comes to its end between two checkpoints, a run says so, once."""

from __future__ import annotations

import warnings

import pytest

import upslope as up
from upslope.rollout.cut_episodes import CutEpisodes

SMALL = {"steps": 3, "envs": 2, "eval_problems": 1, "seed": 0}
OF = {"ppo": {"horizon": 16, "minibatch": 16}, "sac": {"horizon": 16, "updates_per_step": 2, "minibatch": 8}}


def told(work) -> list[str]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        work()
    return [str(each.message) for each in found if "ended in the" in str(each.message)]


def test_it_is_told_once_and_only_where_none_ended():
    def between(*ended):
        for each in ended:
            watch.stepped(each)
        watch.begin_anew()

    watch = CutEpisodes("a task")
    assert told(watch.begin_anew) == []  # nobody has acted yet
    assert told(lambda: between(False, True, False)) == []
    assert told(lambda: between(False, False))[0].startswith("no episode of a task ended in the 2 steps of each environment")
    assert told(lambda: between(False)) == []
    watch = CutEpisodes("a task without resets", told=True)
    assert told(lambda: between(False)) == []


@pytest.mark.parametrize("method", OF)
def test_a_run_whose_checkpoints_cut_every_episode_says_so(method, tmp_path):
    def train(every, task):
        up.train(method, task, out=tmp_path / f"{every} {task}".replace(":", "-"), checkpoint_every=every, **SMALL, **OF[method])

    found = told(lambda: train(1, "gym:Pendulum-v1"))  # an episode has 200 steps
    assert len(found) == 1 and "in the 16 steps" in found[0] and "--checkpoint-every" in found[0]
    assert told(lambda: train(3, "gym:Pendulum-v1")) == []  # behind the last checkpoint nobody acts
    assert told(lambda: train(1, "gym:Pendulum-v1:max_episode_steps=8")) == []
