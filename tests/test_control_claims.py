"""The claims about control: beds that make their own data, environments of known values, many claims run at once."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from upslope.experience import load_dataset

FOLDER = Path(__file__).resolve().parent.parent / "bench" / "claims"
sys.path.insert(0, str(FOLDER))

import control_bed  # noqa: E402
import control_envs  # noqa: E402
import many  # noqa: E402
from control_bed import SHARED, ControlBed, env_steps_until, final_return  # noqa: E402
from data_beds import REPLAY, DataBed  # noqa: E402
from harness import Claim, Result, Statement, TextBed, Variant, run_cell  # noqa: E402

SMALL_POLICY = {"policy.hidden": (8, 8)}


def control(**changes):
    given = {
        "name": "example",
        "title": "An example",
        "about": "Two on data.",
        "variants": {"bc": Variant("bc", SMALL_POLICY), "td3": Variant("td3", {}, {"offline_steps": 2})},
        "bed": ControlBed("WalledPoint", data="mixed:expert=0.5", data_steps=200, episodes=2),
        "settings": {"steps": 2, "updates_per_step": 2, "horizon": 20, "eval_problems": 1, "minibatch": 8},
        "measures": {"final return": final_return, "steps": env_steps_until(-1.0, within=40)},
        "statements": [Statement("bc", "above", "td3", "final return")],
        "chosen": "it was not.",
        "curves": {"return": "return"},
        "seeds": 2,
    }
    return Claim(**given | changes)  # type: ignore[arg-type]


def test_a_control_bed_learns_from_data_of_the_seed_and_is_judged(tmp_path, monkeypatch):
    monkeypatch.setenv(SHARED, str(tmp_path))
    first, again = (run_cell(control().cells([3])[0]) for _ in range(2))
    assert [folder.name for folder in tmp_path.iterdir() if folder.is_dir()] == ["WalledPoint-mixed-expert-0-5-2000-200-3"]
    assert first.metrics == again.metrics and len(first.metrics) == 2 and first.curve("updates").tolist() == [2, 2]
    assert -200 < first.after < 0 and first.extra["final return"] == first.after and first.extra["stopped"] == 0
    other = run_cell(control().cells([4])[0])
    assert other.curve("loss").tolist() != first.curve("loss").tolist()


@pytest.mark.parametrize(("name", "least"), [("WalledPoint", -60.0), ("SparseReach", 0.9)])
def test_data_of_the_small_environments_have_an_expert(tmp_path, name, least):
    made = load_dataset(ControlBed(name, data="expert", data_steps=100).dataset(0, tmp_path))
    assert made.card.expert > least


def test_only_who_learns_from_data_is_given_some():
    variants = {
        "bc": Variant("bc"),
        "sac": Variant("sac"),
        "rlpd": Variant("rlpd"),
        "td3": Variant("td3", {}, {"offline_steps": 1}),
    }
    assert [control_bed._wants_data(cell) for cell in control(variants=variants).cells([0])] == [True, False, True, True]


def test_a_run_whose_values_leave_all_bounds_keeps_its_last_return(monkeypatch):
    from upslope.learners.nonfinite import NonFinite

    def at_the_second(method, metrics, largest_reward, gamma, step):
        if step == 2:
            raise NonFinite("values left all bounds.", "Do something.")

    monkeypatch.setattr("upslope.learners.actor_critic.check_values", at_the_second)
    result = run_cell(control().cells([0])[1])
    assert result.extra == {"stopped": 1.0, "final return": result.after} and len(result.metrics) == 2
    assert np.isnan(result.curve("q_value")).tolist() == [False, True] and np.isfinite(result.curve("return")).all()


def test_steps_until_a_return_are_steps_in_the_environment():
    def of(returns):
        metrics = [{"return": score, "env_steps": 50.0 * (step + 1)} for step, score in enumerate(returns)]
        return Result(control().cells([0])[0], 0.0, returns[-1], 0.0, metrics)

    assert env_steps_until(-1.0, within=400)(of([-9, -1, -3])) == 100
    assert env_steps_until(-1.0, within=400)(of([-9, -8, -7])) == 400 and env_steps_until(-1.0, within=80)(of([-9, -1])) == 80


def test_walls_stop_the_point_except_in_the_gap():
    env = control_envs.WalledPoint()
    env.reset(seed=0)
    for left, passes in ((-0.75, True), (-0.4, False), (0.5, False)):
        env.place, env.speed = np.array([left, -0.01]), np.zeros(2)
        env.step(np.array([0.0, 1.0]))
        assert (env.place[1] > 0) == passes
    env.place = np.array([0.6, -0.2])
    around = np.hypot(1.35, 0.2) + np.hypot(1.35, 0.6)
    assert env.way_left() == pytest.approx(around) and around > np.hypot(0.0, 0.8)


@pytest.mark.parametrize(("action", "pays"), [(-0.2, 0.2), (0.5, 0.5), (0.9, 0.1), (-1.0, 0.0)])
def test_one_shot_pays_most_at_the_edge_of_its_inner_half(action, pays):
    env = control_envs.OneShot()
    env.reset(seed=0)
    _, reward, terminated, _, _ = env.step(np.array([action]))
    assert reward == pytest.approx(pays) and terminated


def test_experts_of_the_small_environments_know_the_way():
    for env in (control_envs.WalledPoint(), control_envs.SparseReach()):
        observation, _ = env.reset(seed=1)
        expert, over = control_envs.Towards(), False
        expert.begin(env, observation, np.random.default_rng(0))
        while not over:
            observation, _, terminated, truncated, _ = env.step(expert.act(observation))
            over = terminated or truncated
        assert np.linalg.norm(env.place - env.goal) < 0.15


@pytest.mark.slow
def test_the_robot_arm_is_paid_for_reaching_its_cube_and_its_script_does():
    env = control_envs.CubeReach()
    observation, _ = env.reset(seed=1)
    script, paid, over = control_envs.ToCube(), [], False
    script.begin(env, observation, np.random.default_rng(0))
    while not over:
        observation, reward, over, late, _ = env.step(script.act(observation))
        paid.append(reward)
        assert not late
    assert paid[-1] == 1 and not any(paid[:-1]) and 5 < len(paid) < 40
    env.reset(seed=1)
    ends = [env.step(np.zeros(5, np.float32))[1:4] for _ in range(env.length)]
    assert ends[-1] == (0.0, False, True) and not any(truncated for _, _, truncated in ends[:-1])


def test_the_arm_that_is_seen_by_a_camera_is_the_same_arm():
    """Without drawing anything, which needs a graphics library."""
    from upslope.tasks.env_packages import register

    seen, told = control_envs.CubeReachPixels, control_envs.CubeReach
    register(seen.name)
    with_camera, without = (gymnasium.spec(each.name).kwargs for each in (seen, told))
    assert {name: value for name, value in with_camera.items() if name in without} == without
    assert with_camera["ob_type"] == "pixels" and (with_camera["width"], with_camera["height"]) == (64, 64)
    assert control_envs.CONTROLLERS["CubeReachPixels"][1] is control_envs.CONTROLLERS["CubeReach"][1]
    assert (seen.near, seen.length) == (told.near, told.length)
    arm, without_camera = object.__new__(seen), told()
    _, known = without_camera.robot.reset(seed=0)
    shown = arm.shown(np.zeros((64, 64, 3), np.uint8), known)
    assert shown["gripper"].shape == (6,) and np.allclose(shown["gripper"][:3], known["proprio/effector_pos"])


def test_cells_that_differ_only_in_their_names_are_run_once():
    other = {"other": Variant("bc", SMALL_POLICY), "larger": Variant("bc")}
    second = control(name="second", variants=other, statements=[Statement("other", "above", "larger", "final return")])
    cells = many.in_order({"example": control(), "second": second}, [0, 1], smoke=False)
    once = many._once(cells)
    assert len(cells) == 8 and sorted(key for keys, _ in once for key in keys) == sorted(key for key, _ in cells)
    shared = [[(name, label, seed) for name, _, label, seed in keys] for keys, _ in once if len(keys) > 1]
    assert shared == [[("example", "bc", seed), ("second", "other", seed)] for seed in (0, 1)]


def test_a_moment_of_a_text_run_changes_nothing_but_its_steps():
    text = control(bed=TextBed(), settings={"steps": 80, "lr": 1e-3}, variants={"bc": Variant("grpo"), "td3": Variant("dr-grpo")})
    for _, cell in many.in_order({"example": text}, [0], smoke=True):
        assert cell.settings == {"steps": many.MOMENT, "lr": 1e-3}


@pytest.mark.slow
def test_many_claims_run_at_once_go_on_where_they_stopped_and_are_told_later(tmp_path, monkeypatch, capsys):
    def in_turn(workers):
        return ThreadPoolExecutor(1)

    monkeypatch.setattr(many, "pool", in_turn)
    monkeypatch.setattr(many, "claims", lambda: {"example": control()})
    arguments = ["--out", str(tmp_path / "cells"), "--seeds", "2"]
    many.main(["run", *arguments, "--workers", "1", "--minutes", "0"])
    assert "4 cells were not begun" in capsys.readouterr().out
    many.main(["run", *arguments, "--workers", "1"])
    assert "0 cells were not begun" in capsys.readouterr().out
    many.main(["run", *arguments, "--workers", "1"])
    assert "0 cells to run, 4 are there" in capsys.readouterr().out
    many.main(["page", *arguments, "--pages", str(tmp_path)])
    assert "- bc: above td3: " in (tmp_path / "example.md").read_text() and (tmp_path / "example.png").exists()
    many.main(["list", *arguments, "example"])
    assert capsys.readouterr().out.splitlines()[-1] == "example"
    with pytest.raises(SystemExit, match="no claim 'dappo'"):
        many.main(["list", "dappo"])


def test_variants_can_differ_in_their_data_and_know_how_they_are_measured(tmp_path, monkeypatch):
    monkeypatch.setenv(SHARED, str(tmp_path))
    claim = control(
        variants={"calm": Variant("bc", SMALL_POLICY, {"data_task": "CalmDetour"}), "own": Variant("bc", SMALL_POLICY)},
        bed=DataBed("Detour", data="expert", data_steps=60, explorer="", episodes=2),
        statements=[Statement("calm", "above", "own", "final return")],
    )
    calm, own = (run_cell(cell) for cell in claim.cells([3]))
    assert sorted(folder.name for folder in tmp_path.iterdir() if folder.is_dir()) == [
        "CalmDetour-expert-2000-60-3",
        "Detour-expert-2000-60-3",
    ]
    assert calm.extra["transition noise"] < own.extra["transition noise"]
    assert calm.extra["advice imitation"] == 1.0 and calm.cell.settings["data_task"] == "CalmDetour"


def test_the_experience_of_an_explorer_is_data_and_a_measure_of_others(tmp_path):
    bed = DataBed(
        "gym:upslope/Chain-v0", data=REPLAY, data_steps=80, explorer_knobs=(("models.q.network.hidden", (8,)),),
        explorer_settings=(("updates_per_step", 2), ("minibatch", 8)),
    )  # fmt: skip
    made = load_dataset(bed.dataset(0, tmp_path))
    assert made.card.recipe == "replay" and made.card.decisions == 80
    assert bed.dataset(0, tmp_path) == tmp_path / made.card.name


@pytest.mark.parametrize("noise", [control_envs.CalmDetour, control_envs.EitherDetour, control_envs.ShakyDetour])
def test_who_shows_the_detour_arrives(noise):
    for seed in range(5):
        world = noise()
        world.reset(seed=seed)
        over, steps = False, 0
        while not over and steps < 50:
            _, _, over, _, _ = world.step(world.best_action(np.zeros(4)))
            steps += 1
            assert np.linalg.norm(world.place) >= world.radius
        assert over
