"""The process belongs to the caller: what a run sets in it is as it was before when the run has ended."""

import os
import subprocess
import sys

import pytest
import torch

import upslope as up
from upslope.report.checkup import EvaluationRequest, Speaker, episode, evaluate
from upslope.report.compare.sampling import sample
from upslope.run import Watcher
from upslope.runtime.environment import default_environment
from upslope.runtime.threads import restored_threads, torch_threads, use_threads

TEXT = {
    "task": "reverse:length=2", "model": "tiny:layers=1,width=16", "steps": 1, "tasks_per_step": 2, "samples_per_task": 2,
    "warm_start": 0.0, "eval_problems": 4, "record": "none",
}  # fmt: skip
CONTROL = {"task": "gym:CartPole-v1", "steps": 1, "envs": 1, "horizon": 8, "passes": 1, "eval_problems": 1}


def surroundings():
    return {
        "threads": torch.get_num_threads(),
        "oneDNN": torch.backends.mkldnn.enabled,
        "environment": {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"},
        "dtype": torch.get_default_dtype(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "grad": torch.is_grad_enabled(),
        "random": torch.get_rng_state().tolist(),
    }


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """One of each kind. After it torch and gymnasium are loaded, which set variables of their own as they are."""
    folder = tmp_path_factory.mktemp("runs")
    return {"text": up.train("grpo", **TEXT, out=folder / "text"), "control": up.train("ppo", **CONTROL, out=folder / "control")}


@pytest.fixture
def callers(runs):
    """What a caller may have chosen, unlike anything that a run would."""
    with restored_threads():
        torch.set_num_threads(3)
        torch.backends.mkldnn.enabled = True
        yield surroundings()


@pytest.mark.parametrize(("method", "settings"), [("grpo", TEXT), ("ppo", CONTROL)])
def test_training_leaves_the_process_as_it_was(callers, tmp_path, method, settings):
    class Watching(Watcher):
        def stepped(self, step, metrics):
            seen.append(torch.get_num_threads())

    seen = []
    up.train(method, **settings, threads=1, out=tmp_path / "run", watcher=Watching())
    assert surroundings() == callers and seen == [1]


def test_so_does_a_run_that_fails(callers, tmp_path):
    class Failing(Watcher):
        def stepped(self, step, metrics):
            raise RuntimeError("the watcher's own")

    with pytest.raises(RuntimeError, match="the watcher's own"):
        up.train("grpo", **TEXT, out=tmp_path / "run", watcher=Failing())
    assert surroundings() == callers
    up.resume(tmp_path / "run")
    assert surroundings() == callers


def test_so_does_looking_at_a_run(callers, runs):
    assert evaluate(up.load(runs["text"].path), EvaluationRequest(k=2, problems=2))["problems"] == 2
    assert evaluate(up.load(runs["control"].path), EvaluationRequest(problems=1))["episodes"] == 1
    speaker = Speaker(up.load(runs["text"].path))
    speaker.answer("ab=")
    speaker.examples(2)
    episode(up.load(runs["control"].path))
    sample(runs["text"].path, 2, 2)
    assert surroundings() == callers


def test_a_runs_threads_are_set_in_one_way_everywhere(callers, runs, monkeypatch):
    asked = []
    monkeypatch.setattr("upslope.runtime.threads.use_threads", asked.append)
    sample(runs["text"].path, 2, 2)
    evaluate(up.load(runs["text"].path), EvaluationRequest(k=2, problems=2))
    evaluate(up.load(runs["control"].path), EvaluationRequest(problems=1))
    assert asked == [1, 1, 1]


def test_on_arm_onednn_is_left_out_and_comes_back(callers, monkeypatch):
    for machine, expected in (("aarch64", False), ("arm64", False), ("x86_64", True)):
        monkeypatch.setattr("platform.machine", lambda machine=machine: machine)
        with torch_threads(2):
            assert (torch.get_num_threads(), torch.backends.mkldnn.enabled) == (2, expected)
        assert surroundings() == callers
    with restored_threads():
        use_threads(1)
        assert torch.get_num_threads() == 1
    assert surroundings() == callers


def test_variables_that_somebody_set_are_kept(monkeypatch):
    monkeypatch.setenv("SET_BEFORE", "theirs")
    monkeypatch.delenv("NOT_SET", raising=False)
    before = dict(os.environ)
    with default_environment({"SET_BEFORE": "ours", "NOT_SET": "ours"}):
        assert (os.environ["SET_BEFORE"], os.environ["NOT_SET"]) == ("theirs", "ours")
    assert dict(os.environ) == before


LOADING = """
import os, sys

class Probe:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            print("torch finds", os.environ.get("MIMALLOC_PURGE_DELAY"))

sys.meta_path.insert(0, Probe())
before = dict(os.environ)
import upslope
assert "torch" not in sys.modules and dict(os.environ) == before
upslope.method
assert "torch" in sys.modules and dict(os.environ) == before
"""


@pytest.mark.parametrize("given", [None, "7"])
def test_importing_changes_no_variable_and_torch_finds_what_it_needs_as_it_is_loaded(given):
    environment = {name: value for name, value in os.environ.items() if name != "MIMALLOC_PURGE_DELAY"}
    environment |= {"MIMALLOC_PURGE_DELAY": given} if given else {}
    done = subprocess.run([sys.executable, "-c", LOADING], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr, done.stdout.splitlines()[:1]) == (0, "", [f"torch finds {given or -1}"])


FAULTS = """
import resource, sys
import numpy as np
from upslope.runtime.environment import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    held = [np.ones(2**20) for _ in range(20)]  # 8 MB each
    del held
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

kept = keep_freed_memory()
faults()
print(kept, faults() < 1000)
"""


@pytest.mark.skipif(sys.platform != "linux" or not os.confstr("CS_GNU_LIBC_VERSION"), reason="glibc's malloc")
@pytest.mark.parametrize("theirs", [None, "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"])
def test_freed_memory_is_kept_for_the_next_step_unless_somebody_said_otherwise(theirs):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    environment |= (
        {} if theirs is None else {theirs: "131072" if theirs.startswith("MALLOC") else "glibc.malloc.trim_threshold=131072"}
    )
    done = subprocess.run([sys.executable, "-c", FAULTS], env=environment, capture_output=True, text=True, check=False)
    expected = "True True" if theirs is None else "False False"
    assert (done.returncode, done.stdout.strip()) == (0, expected), done.stderr
