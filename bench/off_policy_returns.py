"""Returns after the same number of steps or updates, beside Stable-Baselines3 and d3rlpy, over seeds.

    python bench/off_policy_returns.py --processes 12 --out bench/results/off_policy_returns.json
    python bench/off_policy_returns.py --only td3-bc,iql,cql --processes 4 --device cuda --out ...
    python bench/off_policy_returns.py --only sac --sides ours --work FOLDER     # one side alone; --out FILE --summary tells of all

Online (sac on HalfCheetah-v5, td3 on Hopper-v5): 60,000 steps of one environment, an update for each, the defaults of
Stable-Baselines3 on both sides, and in td3 on both the noise of 0.1 that its paper has. From data (td3-bc, iql, cql): the same made
dataset on both sides, the defaults of each, which in td3-bc and iql are the same networks and rates and in cql are not. A run is a
process with one thread; it judges itself by ten greedy episodes every tenth of the way, so that a run that is cut off has told what
it had. Both sides are compared at the last point that all runs of both have reached. Intervals are 95 %, by Student's t over seeds.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

ONLINE = {"sac": "HalfCheetah-v5", "td3": "Hopper-v5"}
UPDATES = {"td3-bc": 20_000, "iql": 20_000, "cql": 3_000}
STEPS, POINTS, EPISODES = 60_000, 10, 10
WIDE = {"policy.hidden": (400, 300), "models.q.network.hidden": (400, 300)}
"""Networks of Stable-Baselines3's TD3; its SAC has our default."""
T_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}
"""Of Student's t: how many standard errors of a mean of so many are 95 %."""
DATA_TASK, DATA_STEPS, DATA_RECIPE = "Pendulum-v1", 20_000, "mixed:expert=0.3"


def evaluate(task: str, act: Any) -> list[float]:
    """Returns of greedy episodes, the same ones for everybody."""
    import gymnasium

    env, returns = gymnasium.make(task), []
    for episode in range(EPISODES):
        seen, _ = env.reset(seed=10_000 + episode)
        total, over = 0.0, False
        while not over:
            seen, reward, terminated, truncated, _ = env.step(act(seen))
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    return returns


def ours_online(method: str, seed: int, report: Any, device: str) -> None:
    from upslope.learners.base import make_learner
    from upslope.methods import find
    from upslope.rollout.deployed import DeployedPolicy
    from upslope.runtime.settings import Settings
    from upslope.runtime.threads import use_threads
    from upslope.setting_up import set_up

    use_threads(1)
    task, each = ONLINE[method], STEPS // POINTS
    settings = Settings(steps=POINTS, horizon=each, updates_per_step=each, seed=seed, device=device)  # type: ignore[arg-type]
    made = set_up(find(method), f"gym:{task}", "tiny", settings, knobs=WIDE if method == "td3" else {})
    learner = make_learner(made.method, made.policy, made.rollout, made.settings)
    for step in range(1, POINTS + 1):
        learner.step(step)
        deployed = DeployedPolicy(made.task, made.policy, made.rollout.observations)
        report(step * each, evaluate(task, lambda seen, own=deployed: own.predict(seen, deterministic=True)[0]))


def sb3_online(method: str, seed: int, report: Any, device: str) -> None:
    import gymnasium
    import stable_baselines3 as sb3
    import torch

    torch.set_num_threads(1)
    task, each = ONLINE[method], STEPS // POINTS
    env = gymnasium.make(task)
    noise = sb3.common.noise.NormalActionNoise(np.zeros(env.action_space.shape), 0.1 * np.ones(env.action_space.shape))
    model = sb3.SAC("MlpPolicy", env, seed=seed, device=device)
    if method == "td3":
        model = sb3.TD3("MlpPolicy", env, seed=seed, device=device, action_noise=noise)
    for point in range(1, POINTS + 1):
        model.learn(each, reset_num_timesteps=point == 1, log_interval=None)
        report(point * each, evaluate(task, lambda seen: model.predict(seen, deterministic=True)[0]))


def made_data() -> Any:
    """The dataset, made once a process: the same numbers for the same seed."""
    import tempfile

    from upslope.datasets.api import make_data

    folder = tempfile.mkdtemp()
    return make_data("returns", f"gym:{DATA_TASK}", DATA_RECIPE, steps=DATA_STEPS, seed=3, out=folder)


def ours_offline(method: str, seed: int, report: Any, device: str) -> None:
    from upslope.learners.base import make_learner
    from upslope.methods import find
    from upslope.rollout.deployed import DeployedPolicy
    from upslope.runtime.settings import Settings
    from upslope.runtime.threads import use_threads
    from upslope.setting_up import set_up

    use_threads(1)
    each = UPDATES[method] // POINTS
    sizes: dict[str, Any] = {"steps": POINTS, "offline_steps": POINTS, "updates_per_step": each}
    settings = Settings(**sizes, seed=seed, device=device)  # type: ignore[arg-type]
    made = set_up(find(method), f"gym:{DATA_TASK}", "tiny", settings, dataset=made_data())
    learner = make_learner(made.method, made.policy, made.rollout, made.settings)
    for step in range(1, POINTS + 1):
        learner.step(step)
        deployed = DeployedPolicy(made.task, made.policy, made.rollout.observations)
        report(step * each, evaluate(DATA_TASK, lambda seen, own=deployed: own.predict(seen, deterministic=True)[0]))


def d3rlpy_offline(method: str, seed: int, report: Any, device: str) -> None:
    import d3rlpy
    import gymnasium
    import torch

    torch.set_num_threads(1)
    d3rlpy.seed(seed)
    box = gymnasium.make(DATA_TASK).action_space
    data = made_data().episodes
    episodes = [
        d3rlpy.dataset.Episode(np.array(each.observations[:-1]), np.array(each.actions), np.array(each.rewards)[:, None], False)
        for each in data
    ]
    dataset = d3rlpy.dataset.ReplayBuffer(
        d3rlpy.dataset.InfiniteBuffer(), episodes=episodes, action_space=d3rlpy.ActionSpace.CONTINUOUS
    )
    scaled = {
        "observation_scaler": d3rlpy.preprocessing.StandardObservationScaler(),
        "action_scaler": d3rlpy.preprocessing.MinMaxActionScaler(minimum=box.low, maximum=box.high),
    }
    make = {"td3-bc": d3rlpy.algos.TD3PlusBCConfig, "iql": d3rlpy.algos.IQLConfig, "cql": d3rlpy.algos.CQLConfig}[method]
    algo = make(**scaled).create(device="cuda:0" if device == "cuda" else False)
    algo.build_with_dataset(dataset)
    scaled["observation_scaler"].fit_with_transition_picker(dataset.episodes, dataset.transition_picker)
    each = UPDATES[method] // POINTS
    for point in range(1, POINTS + 1):
        for _ in range(each):
            algo.update(dataset.sample_transition_batch(256))
        report(point * each, evaluate(DATA_TASK, lambda seen: algo.predict(seen[None])[0]))


SIDES = {
    **{(method, "ours"): ours_online for method in ONLINE},
    **{(method, "Stable-Baselines3"): sb3_online for method in ONLINE},
    **{(method, "ours"): ours_offline for method in UPDATES},
    **{(method, "d3rlpy"): d3rlpy_offline for method in UPDATES},
}


def run(job: tuple[str, str, int], folder: str, device: str) -> None:
    """One run; what it has reached is written after every tenth of the way."""
    method, side, seed = job
    began, curve = time.perf_counter(), []
    file = Path(folder, f"{method}-{side}-{seed}.json")

    def report(done: int, returns: list[float]) -> None:
        curve.append({"at": done, "returns": returns})
        told = {"method": method, "side": side, "seed": seed, "device": device, "seconds": time.perf_counter() - began}
        file.with_suffix(".new").write_text(json.dumps({**told, "curve": curve}))
        file.with_suffix(".new").replace(file)  # whole, even if the process is ended at this moment

    SIDES[method, side](method, seed, report, device)


def summary(folder: Path) -> dict[str, Any]:
    """Of each method and side the mean return with its interval over seeds, where all runs of the method have come."""
    runs = [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
    found: dict[str, Any] = {}
    for method, side in sorted({(each["method"], each["side"]) for each in runs}):
        reached = min(each["curve"][-1]["at"] for each in runs if each["method"] == method)
        own = [each for each in runs if (each["method"], each["side"]) == (method, side)]
        found[f"{method}, {side}"] = {"at": reached, **_interval(own, reached)}
    return {"summary": found, "overlap": overlaps(found), "runs": runs}


def _interval(runs: list[dict[str, Any]], reached: int) -> dict[str, Any]:
    finals = np.array([np.mean(next(point for point in each["curve"] if point["at"] == reached)["returns"]) for each in runs])
    half = T_95[len(finals)] * finals.std(ddof=1) / np.sqrt(len(finals)) if len(finals) > 1 else None
    return {
        "seeds": len(finals),
        "return": float(finals.mean()),
        "interval": None if half is None else [float(finals.mean() - half), float(finals.mean() + half)],
        "finals": finals.tolist(),
        "devices": sorted({each.get("device", "cpu") for each in runs}),
        "seconds": float(np.mean([each["seconds"] for each in runs])),
    }


def overlaps(found: dict[str, Any]) -> dict[str, bool]:
    """Whether the intervals of a method's two sides have a point in common; left out where one is not known."""
    sides: dict[str, list[list[float]]] = {}
    for name, each in found.items():
        if each["interval"] is not None:
            sides.setdefault(name.split(",")[0], []).append(each["interval"])
    return {name: max(low for low, _ in both) <= min(high for _, high in both) for name, both in sides.items() if len(both) == 2}


def run_all(jobs: list[tuple[str, str, int]], folder: Path, device: str, processes: int, seconds: float) -> None:
    """So many at a time, each in a process; what still runs after ``seconds`` is cut off."""
    context, running = multiprocessing.get_context("spawn"), []
    began = time.perf_counter()
    while (jobs or running) and time.perf_counter() - began < seconds:
        running = [each for each in running if each.is_alive()]
        while jobs and len(running) < processes:
            running.append(context.Process(target=run, args=(jobs.pop(0), str(folder), device), daemon=True))
            running[-1].start()
        time.sleep(0.2)
    for each in running:
        each.terminate()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join([*ONLINE, *UPDATES]), help="methods")
    parser.add_argument("--sides", choices=("both", "ours", "peers"), default="both")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="of the networks, on both sides (cpu)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="after which what is still running is cut off")
    parser.add_argument("--work", default="", help="folder for what runs have reached")
    parser.add_argument("--summary", action="store_true", help="run nothing, tell what the folder holds")
    parser.add_argument("--out", default="")
    flags = parser.parse_args(arguments)
    os.environ["OMP_NUM_THREADS"] = "1"
    folder = Path(flags.work or flags.out + ".runs")
    folder.mkdir(parents=True, exist_ok=True)
    sides = {"both": (True, False), "ours": (True,), "peers": (False,)}[flags.sides]
    wanted = [(method, side) for method, side in SIDES if method in flags.only.split(",") and (side == "ours") in sides]
    jobs = [(method, side, flags.first_seed + seed) for seed in range(flags.seeds) for method, side in wanted]
    jobs.sort(key=lambda job: job[0] not in ONLINE)  # the longest first
    if not flags.summary:
        run_all(jobs, folder, flags.device, flags.processes, flags.seconds)
    told = {
        "row": "off_policy_returns",
        "command": "python bench/off_policy_returns.py "
        + " ".join(f"--{k.replace('_', '-')} {v}" for k, v in vars(flags).items() if v),
        **summary(folder),
    }
    print(json.dumps({key: told[key] for key in ("summary", "overlap")}, indent=1))
    if flags.out:
        Path(flags.out).write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
