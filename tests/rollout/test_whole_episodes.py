"""Whole episodes in groups: what begins alike, what is compared, and that neither stops nor cuts change anything."""

from __future__ import annotations

import warnings

import choice_environments
import gymnasium
import numpy as np
import pytest
import torch
from rollout_calls import choose, collect

import upslope as up
from upslope.errors import Remark, UserError
from upslope.learners.base import make_learner, needs_start
from upslope.methods import find, own_methods
from upslope.objective import estimator
from upslope.policies.control.mlp import MLPPolicy
from upslope.policies.control.networks import MLP, Recurrent
from upslope.rollout.whole_episodes import EpisodeRollout, Episodes
from upslope.runtime.settings import Settings
from upslope.setting_up import set_up
from upslope.tasks import load_task
from upslope.tasks.gym import GymTask
from upslope.tasks.levels import Level
from upslope.tasks.physics import Change
from upslope.types import Ended, draw_by_weight

torch.set_num_threads(1)
SHORT = "gym:CartPole-v1:max_episode_steps=30"
SIZES = dict(tasks_per_step=3, samples_per_task=4, updates_per_step=2, passes=2)


class Countdown(gymnasium.Env):
    """Ends after ``seed % 3 + 1`` steps, or, with action 1, one step later; pays the number of the step. It sees what is left."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left, self.step_number, self.longer = (seed or 0) % 3 + 1, 0, False
        return np.array([float(self.left)]), {}

    def step(self, action):
        self.step_number += 1
        self.left += int(action == 1 and not self.longer) - 1
        self.longer |= action == 1
        return np.array([float(self.left)]), float(self.step_number), self.left <= 0, False, {}


@pytest.fixture(scope="module", autouse=True)
def countdown():
    gymnasium.register("Countdown-v0", entry_point=Countdown, max_episode_steps=3)
    gymnasium.register("ShortTraps-v0", entry_point=choice_environments.Traps, kwargs={"ends": 4})
    yield
    gymnasium.registry.pop("Countdown-v0")
    gymnasium.registry.pop("ShortTraps-v0")


def rollout(spec: str, tasks: int = 3, samples: int = 4, envs: int = 64, seed: int = 0, workers: int = 1, **more) -> EpisodeRollout:
    task = load_task(spec)
    return EpisodeRollout(
        task, MLPPolicy.for_task(task, seed=1), tasks=tasks, samples=samples, seed=seed, envs=envs, workers=workers, **more
    )


def same(first, second) -> None:
    for name in ("sampled", "reward", "group", "task", "action", "ended"):
        assert torch.equal(getattr(first, name), getattr(second, name)), name
    torch.testing.assert_close(first.behavior.logp, second.behavior.logp)
    assert first.info == second.info


def test_a_row_is_an_episode_from_its_beginning_to_its_end():
    rows = collect(rollout("gym:Countdown-v0", tasks=4), 1)
    assert rows.sampled.shape == (16, 3) and rows.horizon == 3
    for row in range(16):
        length, seed = int(rows.lengths()[row]), rows.info[row]["seed"]
        said = bool((rows.action[row, :length] == 1).any())
        assert length == min(seed % 3 + 1 + said, 3)
        assert float(rows.reward[row]) == length * (length + 1) / 2 == rows.info[row]["episode_returns"][0]
        assert rows.signal["return_to_go"][row, :length].tolist() == [sum(range(t, length + 1)) for t in range(1, length + 1)]
        cut = seed % 3 + 1 + said > 3
        assert rows.ended[row].tolist() == [0] * (length - 1) + [Ended.TRUNCATED if cut else Ended.TERMINATED] + [0] * (3 - length)
    assert rows.step_reward is None  # the return is paid once


def test_a_group_begins_alike_and_acts_differently():
    rows = collect(rollout("gym:Pendulum-v1:max_episode_steps=5,levels.gravity=[8,12]", tasks=3, samples=4), 1)
    first = rows.inputs.observation[:, 0].reshape(3, 4, -1)
    assert (first == first[:, :1]).all() and len({tuple(each[0].tolist()) for each in first}) == 3
    assert rows.group.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert len(set(rows.task.tolist())) == 3 and (rows.task.reshape(3, 4) == rows.task.reshape(3, 4)[:, :1]).all()
    assert len({note["level"]["gravity"] for note in rows.info}) == 3 and len(set(rows.reward.tolist())) == 12
    one = collect(rollout("gym:Pendulum-v1:max_episode_steps=5", tasks=3), 1)
    assert len(set(one.task.tolist())) == 1 and len({note["seed"] for note in one.info}) == 3


def test_levels_that_are_seeds_begin_with_them():
    rows = collect(rollout("gym:CartPole-v1:levels.seed=[0,1],max_episode_steps=5", tasks=8, samples=2), 3)
    assert {note["seed"] for note in rows.info} == {0, 1} and len(set(rows.task.tolist())) == 2


def test_neither_environments_side_by_side_nor_processes_nor_earlier_steps_change_the_episodes():
    whole = rollout(SHORT)
    collect(whole, 1)
    wanted = collect(whole, 2)
    for made in (rollout(SHORT, envs=5), rollout(SHORT, envs=4, workers=2)):
        same(collect(made, 2), wanted)
        made.close()
    other = collect(rollout(SHORT, seed=1), 2)
    assert other.info != wanted.info


def test_statistics_of_observations_are_those_of_the_steps_before():
    made = rollout("gym:Pendulum-v1:max_episode_steps=8", normalise_observations=True)
    first = collect(made, 1)
    plain = collect(rollout("gym:Pendulum-v1:max_episode_steps=8"), 1)
    assert torch.equal(first.inputs.observation, plain.inputs.observation)  # nothing had been seen
    seen = plain.inputs.observation[plain.sampled > 0].numpy()
    assert made.observations.moments.mean == pytest.approx(seen.mean(0)) and made.observations.moments.count == len(seen)
    fresh = rollout("gym:Pendulum-v1:max_episode_steps=8", normalise_observations=True)
    fresh.load_state(made.state())
    same(collect(fresh, 2), collect(made, 2))


def test_what_is_sampled_again_is_other_and_joins_what_was_there():
    made = rollout("gym:Countdown-v0", tasks=2, samples=3)
    first, more = collect(made, 1), collect(made, 1, 1, 1)
    both = made.join([first, more])
    assert both.rows == 9 and both.sampled.shape[1] == max(first.sampled.shape[1], more.sampled.shape[1])
    assert both.group.unique().numel() == 3 and len(both.info) == 9
    assert both.inputs.observation.shape == (*both.sampled.shape, 1)
    assert torch.equal(both.lengths(), torch.cat([first.lengths(), more.lengths()]))


def test_a_curriculum_chooses_among_levels():
    made = rollout("gym:CartPole-v1:levels.length=0.5/1/2,max_episode_steps=5", tasks=2)
    loved = Level((Change("length", 2.0, False),)).task_id(made.task.name)
    rows = choose(made, 1, 0, 2, 20, lambda offer: draw_by_weight(offer, (offer.task == loved).double()))
    assert set(rows.task.tolist()) == {loved} and {note["level"]["length"] for note in rows.info} == {2.0}
    assert len({note["seed"] for note in rows.info}) == 2
    one = choose(rollout(SHORT, tasks=3), 1, 0, 3, 2, lambda offer: draw_by_weight(offer, torch.ones(len(offer))))
    assert one.group.unique().numel() == 3  # without levels all beginnings are of one task


@pytest.mark.parametrize("network", [MLP(), Recurrent()])
@pytest.mark.parametrize("spec", [SHORT, "gym:Pendulum-v1:max_episode_steps=9"])
def test_the_policy_looks_again_at_what_it_saw(network, spec: str):
    """Rows that were joined too: memories begin with each episode, and padding is nobody's."""
    task = load_task(spec)
    policy = network.build(task, 3)
    made = EpisodeRollout(task, policy, tasks=2, samples=3, seed=0, envs=4)
    rows = made.join([collect(made, 1), collect(made, 1, 1, 1)])
    with torch.no_grad():
        found = policy.evaluate(rows).logp
    torch.testing.assert_close(found * rows.sampled, rows.behavior.logp * rows.sampled, rtol=0, atol=1e-5)


# -- methods ---------------------------------------------------------------------------------------------------------------


@pytest.mark.checks("oracle", "grpo", by="two groups of two episodes, by hand")
@pytest.mark.parametrize("name", ["Traps", "Dials"])
def test_forbidden_and_several_choices_are_in_the_rows_too(name: str):
    """What a mask forbids is never taken; what was recorded is what the policy thinks of it again, behind a refill too."""
    spec = f"{choice_environments.__file__}:{name}"
    own, shorter = rollout(spec, tasks=2, samples=3), rollout("gym:ShortTraps-v0" if name == "Traps" else spec, tasks=2, samples=3)
    rows = own.join([collect(own, 1), collect(shorter, 1, 1, 2)])
    assert rows.rows == 12 and (name == "Dials" or not rows.sampled.all()), "episodes of both lengths"
    if name == "Traps":
        mask = rows.inputs.action_mask
        on = rows.sampled > 0
        assert not mask[on].all() and mask[~on].all() and mask.gather(-1, rows.action.unsqueeze(-1)).squeeze(-1)[on].all()
        assert float(rows.reward.min()) >= 0, "a trap costs ten"
    else:
        assert rows.action.shape[-1] == 3 and rows.inputs.action_mask is None
    found = own.policy.evaluate(rows, frozenset({"entropy"}))
    for column in ("logp", "entropy"):
        wanted, seen = getattr(rows.behavior, column), getattr(found, column)
        torch.testing.assert_close(seen * rows.sampled, wanted * rows.sampled, rtol=1e-5, atol=1e-5)


def test_two_levels_of_two_episodes_by_hand():
    """Returns 10 and 30, and 4 and 4: the first group's mean is 20 and its spread sqrt(200), the second has no signal."""
    made = rollout("gym:Countdown-v0", tasks=2, samples=2)
    rows = collect(made, 1).replace(reward=torch.tensor([10.0, 30.0, 4.0, 4.0]))
    advantage = estimator.annotate(find("grpo"), estimator.bind(find("grpo"), {}, rows)).advantage
    value = 10 / (200**0.5 + 1e-6)
    wanted = torch.tensor([-value, value, 0.0, 0.0]).unsqueeze(1) * rows.sampled
    torch.testing.assert_close(advantage, wanted)
    centred = estimator.annotate(find("rloo"), estimator.bind(find("rloo"), {}, rows)).advantage
    torch.testing.assert_close(centred, torch.tensor([-20.0, 20.0, 0.0, 0.0]).unsqueeze(1) * rows.sampled)


def learner(name: str, spec: str = SHORT, **settings):
    given = Settings(**{"steps": 4, **SIZES, **settings})
    made = set_up(find(name), spec, "tiny", given)
    start = made.policy.frozen_copy() if needs_start(made.method, made.settings) else None
    return make_learner(made.method, made.policy, made.rollout, made.settings, start)


def weights(made) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in made.policy.parameters()])


@pytest.mark.parametrize("name", ["grpo", "gspo", "dapo"])
def test_how_an_update_is_cut_changes_nothing(name: str, monkeypatch: pytest.MonkeyPatch):
    whole, cut = learner(name), learner(name)
    monkeypatch.setattr(type(cut.policy), "token_budget", lambda self: 64 if self is cut.policy else 1 << 17)
    for step in (1, 2):
        for made in (whole, cut):
            made.step(step)
    torch.testing.assert_close(weights(cut), weights(whole), rtol=0, atol=2e-6)
    assert not torch.equal(weights(whole), weights(learner(name)))


def test_a_mean_per_episode_is_not_cut_into_decisions():
    """GRPO gives each episode the same weight; single decisions as rows of their own would give it to each decision."""
    made = learner("grpo")
    assert type(made.updater(made.method)).__name__ == "RowUpdater"
    assert type(learner("dapo").updater(find("dapo"))).__name__ == "DecisionUpdater"


@pytest.mark.parametrize("name", ["grpo", "rloo", "dapo"])
def test_a_resumed_run_is_the_run_that_never_stopped(tmp_path, name: str):
    small = dict(**SIZES, eval_problems=2, threads=1, checkpoint_every=1)
    task = f"{SHORT},levels.length=[0.4,0.6]"
    whole = up.train(name, task, steps=4, out=tmp_path / "whole", **small)
    again = up.train(name, task, steps=4, out=tmp_path / "again", **small)
    assert [each["episode_return"] for each in whole.metrics] == [each["episode_return"] for each in again.metrics]
    up.train(name, task, steps=4, out=tmp_path / "stopped", callbacks=[StopAfter(2)], **small)
    stopped = up.resume(tmp_path / "stopped", steps=4)
    for one, other in zip(whole.policy.parameters(), stopped.policy.parameters(), strict=True):
        assert torch.equal(one, other)


class StopAfter(up.Callback):
    """Ends a run after a step."""

    def __init__(self, after: int) -> None:
        self.after = after

    def on_step(self, step, metrics):
        return step < self.after


REFUSED = {
    "bupo": "changes the view", "minirl-r2": "changes the view", "capo": "looks into a language model", "empg": "segment.item",
    "mle-rl": "seconds", "rank-grpo": "segment.item", "seed-grpo": "label.answer", "polychromic": "samples text in its own way",
    "t-ppo": "samples text in its own way", "tempsamp-r1": "GroundTruth", "tempsamp-r1-anchor": "GroundTruth",
    "safe": "2 outputs", "vppo": "reads prompts or reference answers", "pcl": "for methods without a critic",
    "ttrl": "label.answer", "evol-rl": "label.answer", "luffy": "GroundTruth",
    **dict.fromkeys(("sft", "otr", "fdiv-sft", "cap-cpt", "dpo", "ipo", "simpo", "kto", "dynamicpo", "bt-rm", "pair-rm", "opa-dpo",
                     "seppo", "mcts-dpo", "tp-llama", "itool"), "samples text in its own way"),
    **dict.fromkeys(("hpt", "hpt-soft", "ahpo", "srft", "ghpo", "scaf-grpo", "expo-explain", "poro", "clpo", "eva",
                     "sppo", "inpo", "spo-minimax", "nash-md"), "reads prompts or reference answers"),
}  # fmt: skip
"""Methods that need a language model, and what they say of it."""
ALL = [name for name, method in own_methods().items() if method.learner == "policy-gradient" and name not in ("ppo", "bpo")]


@pytest.mark.parametrize("name", ALL)
def test_every_method_without_a_language_only_need_learns_from_episodes(name: str):
    if name in REFUSED:
        with pytest.raises(UserError, match=REFUSED[name]):
            learner(name, "gym:CartPole-v1:max_episode_steps=40")
        return
    made = learner(name, "gym:CartPole-v1:max_episode_steps=40")
    assert made.method.rollout == Episodes() and not made.method.reward
    made.step(1)
    assert weights(made).isfinite().all()


@pytest.mark.parametrize(("name", "knob"), [("nft", "threshold=0.5"), ("nsr", "threshold=0.5"), ("bnpo", "highest=1")])
def test_methods_of_right_and_wrong_ask_what_a_good_return_is(name: str, knob: str):
    with pytest.warns(Remark, match=rf"{name} judges rewards by advantage.{knob}.* Set it to a good return of gym:CartPole-v1"):
        learner(name)
    judged = find(name).with_knobs({f"advantage.{knob.partition('=')[0]}": 20.0})
    with warnings.catch_warnings():
        warnings.simplefilter("error", Remark)
        made = set_up(judged, SHORT, "tiny", Settings(steps=4, **SIZES))
    found = make_learner(made.method, made.policy, made.rollout, made.settings).step(1)
    assert found["learning"] > 0  # with answers' own threshold all episodes are right


@pytest.mark.slow
@pytest.mark.parametrize("name", ["grpo", "rloo"])
def test_cart_pole_is_learned(tmp_path, name: str):
    """About 20 steps before, most of 500 after 16 steps of 64 episodes; by far enough for every seed that was tried."""
    run = up.train(name, "gym:CartPole-v1:max_episode_steps=200", steps=16, eval_problems=10, threads=1, out=tmp_path / "run")
    assert run.summary["score_before"] < 60 and run.summary["score_after"] > 150


@pytest.mark.parametrize(
    ("method", "task", "given", "said"),
    [
        ("ppo", SHORT, {"tasks_per_step": 4}, "--tasks-per-step 4 does nothing here: ppo learns from --horizon steps of --envs"),
        ("ppo", SHORT, {"samples_per_task": 4}, "--samples-per-task 4 does nothing here"),
        ("grpo", SHORT, {"horizon": 64}, "--horizon 64 does nothing here: grpo learns from whole episodes"),
        ("grpo", SHORT, {"normalise_rewards": True}, "--normalise-rewards does nothing here"),
        ("grpo", SHORT, {"samples_per_task": 1}, "--samples-per-task is 1; give at least 2"),
        ("ppo", SHORT, {"knobs": {"rollout": "Episodes"}}, "models.value.*rollout=Episodes\\(\\) is for methods without a critic"),
        ("grpo", "reverse", {"knobs": {"rollout": "Episodes"}}, "rollout=Episodes\\(\\), for environments; reverse is answered"),
        ("grpo", SHORT, {"knobs": {"rollout": "Vine"}}, "samples text in its own way"),
    ],
)
def test_what_would_be_ignored_is_refused(tmp_path, method: str, task: str, given: dict, said: str):
    more = {} if task == SHORT else {"model": "tiny:layers=1,width=16"}
    with pytest.raises(UserError, match=said):
        up.train(method, task, steps=1, out=tmp_path / "run", **more, **given)
    assert not (tmp_path / "run").exists()


def test_the_task_itself_is_left_as_it_is():
    task = GymTask("CartPole-v1", max_episode_steps=8)
    made = EpisodeRollout(task, MLPPolicy.for_task(task), tasks=2, samples=2, seed=0, envs=3)
    assert made.resumes_anywhere and len(made._envs) == 3 and made.metrics() == {"env_steps": 0.0}
    rows = collect(made, 1)
    found = made.metrics()
    assert found["env_steps"] == found["samples"] == float(rows.sampled.sum()) and found["episode_return"] == rows.reward.mean()
