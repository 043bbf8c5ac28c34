"""A trained run makes data: its last checkpoint, and one from the way there."""

from pathlib import Path

import numpy as np
import pytest

import upslope as up
from upslope.datasets import from_run, making
from upslope.datasets.from_run import ActingRun
from upslope.datasets.making import make_data
from upslope.errors import UserError
from upslope.experience.measures import trajectory_quality

TASK = "gym:CartPole-v1:max_episode_steps=100"


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run that kept all its checkpoints."""
    folder = tmp_path_factory.mktemp("kept") / "run"
    up.train("ppo", TASK, steps=10, keep_checkpoints=20, checkpoint_every=1, eval_problems=1, envs=4, horizon=256, out=folder)
    return folder


@pytest.fixture(autouse=True)
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(making, "REFERENCE_EPISODES", 5)
    monkeypatch.setattr(from_run, "EPISODES", 10)


@pytest.mark.slow
def test_medium_is_the_checkpoint_nearest_to_a_third_of_the_way(kept: Path, monkeypatch: pytest.MonkeyPatch):
    # Returns are given, so that what is nearest is known: 10 is random, 40 the end, and 20 a third of the way.
    scores = {0: 10.0, 1: 14.0, 2: 19.0, 3: 22.0, 4: 30.0, 5: 36.0, **dict.fromkeys(range(6, 10), 38.0), 10: 40.0}
    run = ActingRun.open(kept)
    monkeypatch.setattr(ActingRun, "_return", lambda self, task, checkpoint, progress: scores[int(checkpoint.name[5:])])
    assert run.medium(run.task, 10.0).name == "step-000002"
    scores |= {1: 38.0, 2: 38.0, 3: 38.0, 4: 38.0, 5: 38.0}
    with pytest.raises(UserError, match=r"kept no checkpoint near a third.*step-000000, is 0% of the way. Train with --keep"):
        run.medium(run.task, 10.0)
    with pytest.raises(UserError, match=r"ends at a mean return of 40, no better than random actions \(50\)"):
        run.medium(run.task, 50.0)


@pytest.mark.slow
def test_medium_and_expert_data_of_a_run(kept: Path):
    medium, expert = (make_data(recipe, "", recipe, 600, 1, from_run=kept) for recipe in ("medium", "expert"))
    assert medium.card.env == expert.card.env == TASK
    assert medium.card.origin.startswith("run/step-0000") and expert.card.origin.startswith("run/step-000010 ")
    assert medium.card.expert == expert.card.expert > expert.card.random
    assert trajectory_quality(medium) < trajectory_quality(expert)
    again = make_data("again", TASK, "expert", 600, 1, from_run=kept)
    assert again.digest == expert.digest
    assert make_data("expert", "", "expert", 600, 1, from_run=kept).card == expert.card
    noisy = make_data("noisy", "", "noisy:eps=0.5,of=medium", 300, 1, from_run=kept)
    assert noisy.card.origin == medium.card.origin


@pytest.mark.slow
def test_what_a_run_draws_depends_on_the_episode_alone(kept: Path):
    run = ActingRun.open(kept)
    who, seen = run.at(run.last()), np.zeros(4, np.float32)
    drawn = []
    for seed in (1, 2, 1):
        who.begin(None, seen, np.random.default_rng(seed))
        drawn.append([who.act(seen) for _ in range(20)])
    assert drawn[0] == drawn[2] != drawn[1]


@pytest.mark.slow
def test_replay_is_what_the_run_has_seen(tmp_path: Path):
    """Two environments of episodes cut after 50 steps; 3 steps of 100 each."""
    folder, task = tmp_path / "run", "gym:Pendulum-v1:max_episode_steps=50"
    up.train("sac", task, steps=3, envs=2, horizon=100, updates_per_step=1, eval_problems=1, out=folder)
    found = make_data("replay", "", "replay", from_run=folder)
    assert found.card.decisions == 600 and found.card.env == task and found.card.recipe == "replay"
    assert set(found.episodes.lengths.tolist()) <= set(range(1, 51)) and found.episodes.lengths.sum() == 600
    some = make_data("some", "", "replay", 130, from_run=folder)
    assert some.card.decisions == 130
    assert np.array_equal(some.episodes.observation[:50], found.episodes.observation[:50])
    again = make_data("again", "", "replay", 130, from_run=folder)
    assert again.digest == some.digest
    with pytest.raises(UserError, match="has seen 600 decisions"):
        make_data("more", "", "replay", 601, from_run=folder)


@pytest.mark.slow
def test_runs_that_cannot_act(tmp_path: Path):
    with pytest.raises(UserError, match="no run"):
        make_data("mine", "gym:CartPole-v1", "expert", 10, from_run=tmp_path / "none")
    small = dict(model="tiny:layers=1,width=16", tasks_per_step=2, eval_problems=2, warm_start=0)
    up.train("grpo", "reverse:length=2", steps=1, **small, out=tmp_path / "text")
    with pytest.raises(UserError, match=r"its task is reverse:length=2, which is text\. Data are made in environments"):
        make_data("mine", "gym:CartPole-v1", "expert", 10, from_run=tmp_path / "text")
    up.train("ppo", "gym:CartPole-v1", steps=1, envs=2, horizon=16, eval_problems=1, out=tmp_path / "short")
    with pytest.raises(UserError, match=r"kept its last checkpoint only.*--keep-checkpoints 20"):
        make_data("mine", "", "medium", 10, from_run=tmp_path / "short")
    with pytest.raises(UserError, match="kept no experience"):
        make_data("mine", "", "replay", from_run=tmp_path / "short")
    with pytest.raises(UserError, match="acts in gym:CartPole-v1, whose spaces are not those of gym:Pendulum-v1"):
        make_data("mine", "gym:Pendulum-v1", "expert", 10, from_run=tmp_path / "short")
