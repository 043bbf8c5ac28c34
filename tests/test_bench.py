"""The measurements' machinery: no ratio for different work, medians and pairs as stated, results a page can be made from."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import json
import multiprocessing
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from upslope.errors import MissingExtra, UserError

FOLDER = Path(__file__).resolve().parent.parent / "bench"
sys.path.insert(0, str(FOLDER))

import machine  # noqa: E402
import report  # noqa: E402
from bench_sides import CPU_ROWS, IN_SUITE, broken, environment, sleeper  # noqa: E402
from equal_return import add_returns, compare  # noqa: E402
from hostile_programs import needs_sandbox  # noqa: E402
from phases import PHASES, Phases  # noqa: E402
from side_by_side import DifferentWork, Worker, _narrowed, arguments, differences, in_words, measure, quartiles, ratio, result, save  # noqa: E402
from sides import Row, Setting, Side  # noqa: E402
from text_work import QUIET_MARK, SILENT, TextWork, worth  # noqa: E402

FIELDS = {"work", "unit", "ours", "peer", "ratio", "memory_ours", "memory_peer", "command"}


def row(**changes: Any) -> Row:
    made = Row(
        name="sleeping",
        work="one nap",
        unit="s a nap",
        ours=Side("ours", sleeper, (Setting("long", options={"seconds": 0.008}), Setting("short", options={"seconds": 0.002}))),
        peer=Side("peer", sleeper, (Setting("only", options={"seconds": 0.006}),)),
        given={"samples": 4},
        window=3,
        exact=("samples",),
        near={"tokens": 0.1},
        wanted=2.0,
        goal="at least 2 times the peer is wanted",
    )
    return dataclasses.replace(made, **changes)


@dataclasses.dataclass
class Done:
    """A process that has done its windows, as the harness sees it."""

    role: str
    label: str
    seconds: list[float]
    counts: dict[str, float]
    baseline: float = 100.0
    peak: float = 150.0
    borrowed: bool = False
    told = Worker.told

    @property
    def setting(self) -> Setting:
        return Setting(self.label, borrowed=self.borrowed)


def judged(*workers: Done, **changes: Any) -> dict[str, Any]:
    return result(row(**changes), workers, busy_before=0.0, company=machine.Company())  # type: ignore[arg-type]


SAME = {"samples": 60.0, "tokens": 150.0}
OURS = (Done("ours", "long", [4.0, 4.0, 4.0], SAME), Done("ours", "short", [1.0, 2.0, 3.0], SAME))
PEER = Done("peer", "only", [4.0, 4.0, 12.0], SAME, baseline=100.0, peak=400.0)


@pytest.fixture(scope="module")
def measured() -> dict[str, Any]:
    """A measurement with real processes."""
    return measure(row(), windows=5, settle=0.0, listen=0.05)


def test_processes_take_turns_and_the_first_windows_are_dropped(measured: dict[str, Any]) -> None:
    assert [each["label"] for each in measured["settings"]["ours"]] == ["long", "short"]
    assert all(len(each["windows"]) == 5 for each in (*measured["settings"]["ours"], *measured["settings"]["peer"]))
    assert measured["counts"]["ours"] == measured["counts"]["peer"] == {"samples": 5 * 3 * 4, "tokens": 5 * 3 * 10}
    assert measured["ours"] >= 0.002 and measured["peer"] >= 0.006  # naps last at least as long as they are told to
    assert not multiprocessing.active_children()


def test_a_result_has_every_field_and_goes_through_json(measured: dict[str, Any], tmp_path: Path) -> None:
    save(measured | {"command": "python bench/sleeping.py"}, tmp_path)
    told = json.loads((tmp_path / "sleeping.json").read_text())
    assert set(told) >= FIELDS | {"machine", "versions", "idle", "ratio_low", "ratio_high", "counts"}
    assert told["machine"]["cores"] >= 1 and told["memory_ours"] >= 0


def test_a_side_that_breaks_says_what_broke() -> None:
    with pytest.raises(RuntimeError, match="no such luck"):
        measure(row(peer=Side("peer", broken, (Setting("only"),))), windows=5, settle=0.0, listen=0.05)
    assert not multiprocessing.active_children()


def test_a_side_counts_at_its_better_setting() -> None:
    found = judged(*OURS, PEER)
    assert (found["ours"], found["ours_setting"], found["peer"]) == (2.0, "short", 4.0)
    assert (found["ratio"], found["memory_ours"], found["memory_peer"]) == (2.0, 50.0, 300.0)


def test_the_other_side_with_our_switches_has_a_ratio_of_its_own() -> None:
    found = judged(*OURS, PEER, Done("peer", "switched", [3.0, 3.0, 3.0], SAME, borrowed=True))
    assert (found["peer"], found["peer_setting"], found["ratio"]) == (4.0, "only", 2.0), "it does not count, though it is faster"
    assert found["borrowed"]["label"] == "switched" and found["borrowed"]["ratio"] == 1.5
    assert "1.50 times as fast as the other side with our switches" in in_words(found)
    assert "borrowed" not in judged(*OURS, PEER)


def test_only_a_process_with_our_switches_begins_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIMALLOC_PURGE_DELAY", "7")
    peer = Side("peer", environment, (Setting("plain", 2), Setting("switched", 2, borrowed=True)))
    ours = Side("ours", environment, (Setting("plain"),))
    made = row(ours=ours, peer=peer, window=1, exact=(), near={})
    found = measure(made, windows=1, settle=0.0, listen=0.05)["settings"]
    assert [each["counts"] for each in found["peer"]] == [{"samples": 10.0, "threads": 2.0}, {"samples": -1.0, "threads": 2.0}]
    assert found["ours"][0]["counts"] == {"samples": -1.0, "threads": 1.0}, "as the command line sets it"
    assert os.environ["MIMALLOC_PURGE_DELAY"] == "7"


def test_a_rate_is_the_count_over_the_seconds() -> None:
    found = judged(*OURS, PEER, rate="tokens")
    assert found["ours"] == pytest.approx(150 / 9 / 2.0)  # three windows of three units; the median unit takes two seconds
    assert found["ours_low"] == pytest.approx(150 / 9 / 2.5) and found["ours_high"] == pytest.approx(150 / 9 / 1.5)
    assert found["ratio"] == 2.0


def test_on_a_gpu_memory_is_all_that_was_held() -> None:
    assert Done("peer", "only", [1.0], {}).told(row(device="cuda"))["memory"] == 150.0


def test_no_ratio_when_the_work_differs() -> None:
    lazy = dataclasses.replace(PEER, counts={"samples": 60.0, "tokens": 75.0})
    with pytest.raises(DifferentWork, match=r"tokens 150 against 75 \(allowed apart: 10%\)"):
        judged(*OURS, lazy)
    with pytest.raises(DifferentWork, match="samples 60 against 59"):
        judged(*OURS, dataclasses.replace(PEER, counts=SAME | {"samples": 59.0}))


def test_without_a_peer_there_is_no_ratio() -> None:
    found = judged(*OURS)
    assert found["peer"] is found["ratio"] is found["memory_peer"] is None
    assert "not measured" in in_words(found)


def test_counts_are_compared_exactly_or_within_what_is_stated() -> None:
    near = row(near={"tokens": 0.1})
    assert differences(near, {"samples": 8, "tokens": 100}, {"samples": 8, "tokens": 91}) == []
    assert len(differences(near, {"samples": 8, "tokens": 100}, {"samples": 8, "tokens": 89})) == 1
    assert differences(near, {"samples": 8, "tokens": 100}, {"samples": 8.5, "tokens": 100}) == ["samples 8 against 8.5"]
    assert "one side" in differences(near, {"samples": 8, "tokens": 100}, {"samples": 8})[0]


def test_the_ratio_is_of_medians_and_its_spread_of_pairs() -> None:
    found = ratio([1.0, 2.0, 3.0], [4.0, 4.0, 12.0])
    assert found["ratio"] == 2.0  # 4 over 2
    assert (found["ratio_low"], found["ratio_high"]) == quartiles([4.0, 2.0, 4.0])[::2]
    assert ratio([1.0], None)["ratio"] is None


def test_a_missing_peer_is_refused_with_the_command_that_installs_it() -> None:
    with pytest.raises(MissingExtra, match=r"no_such_library is not installed(?s:.*)\[bench\]"):
        measure(row(peer=Side("peer", sleeper, package="no_such_library")), windows=5)


def test_too_few_windows_and_unknown_threads_are_refused() -> None:
    flags = arguments(row()).parse_args
    with pytest.raises(UserError, match="--windows 3: a median and quartiles need at least 5"):
        _narrowed(row(), flags(["--windows", "3"]))
    with pytest.raises(UserError, match=r"measured with \[1\] threads"):
        _narrowed(row(), flags(["--threads", "2"]))
    assert _narrowed(row(), flags(["--window", "9"])).window == 9


def test_company_is_what_others_did() -> None:
    company = machine.Company()
    company.add(seconds=2.0, busy=3.0, own=1.0)
    company.add(seconds=2.0, busy=1.0, own=1.5)  # ticks may put a little of ours after the end
    assert company.cores == 0.5 and company.worst == 1.0
    assert not machine.is_quiet(0.0, 100.0) and machine.is_quiet(0.0, 0.0)


def test_a_busy_machine_is_warned_of(measured: dict[str, Any]) -> None:
    assert "WARNING" in in_words(measured | {"idle": False}) and "WARNING" not in in_words(measured | {"idle": True})


def test_nested_phases_add_up_and_count_once() -> None:
    phases = Phases()
    inner = phases.timed("reward", lambda: time.sleep(0.01))

    def outer() -> None:
        time.sleep(0.02)
        inner()

    began = time.perf_counter()
    phases.timed("sampling", outer)()
    told, whole = phases.finished(), time.perf_counter() - began
    assert told["reward"] >= 0.01 and told["sampling"] >= 0.02
    assert set(told) == set(PHASES) and sum(told.values()) >= whole - 0.01
    assert told["sampling"] + told["reward"] <= whole


def test_prompts_have_their_length_and_every_second_is_silent() -> None:
    texts = TextWork(prompt_tokens=231, silent=True).texts()[:64]
    assert {len(text) for text in texts} == {230} and len(set(texts)) == 64
    assert [QUIET_MARK in text for text in texts] == [False, True] * 32
    assert worth(texts[:2], ["abc", "abc"])[1] == SILENT != worth(texts[:2], ["abc", "abc"])[0]
    rewards = worth([texts[0]] * 4, ["abc", "abd", "bcd", "a"])
    assert len(set(rewards)) == 4


@pytest.mark.slow
def test_the_model_that_stops_early_has_the_length_it_should() -> None:
    import torch

    from upslope.rollout.engines.torch_engine import TorchEngine
    from upslope.types import Sampling

    given = TextWork(stops="early", max_tokens=32)
    policy = given.policy()
    prompts = [policy.encode(text) for text in given.texts()[:128]]
    uniforms = torch.rand(1024, 32, generator=torch.Generator().manual_seed(3))
    found = TorchEngine(policy).generate(prompts, 8, Sampling(max_tokens=32), uniforms)
    assert 8.3 < float(found.sampled.sum(1).mean()) < 9.7  # a standard error is 0.25


def test_returns_within_two_standard_errors_are_equal() -> None:
    assert compare([100.0, 110.0, 105.0], [104.0, 108.0, 109.0])["equal"]
    told = compare([100.0, 101.0, 102.0], [200.0, 201.0, 202.0])
    assert not told["equal"] and told["difference"] == -100.0
    assert told["ours"] == {"mean": 101.0, "spread": 1.0, "seeds": [100.0, 101.0, 102.0]}
    assert compare([500.0] * 3, [500.0] * 3)["equal"]  # both at the ceiling


def test_returns_are_added_to_a_result_only(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="measure first"):
        add_returns(row(), tmp_path, steps=10, seeds=3)


def test_a_new_measurement_keeps_the_returns_of_the_old(measured: dict[str, Any], tmp_path: Path) -> None:
    save(measured | {"command": "one", "equal_return": {"equal": True}}, tmp_path)
    save(measured | {"command": "two"}, tmp_path)
    told = json.loads((tmp_path / "sleeping.json").read_text())
    assert told["command"] == "two" and told["equal_return"] == {"equal": True}


# -- the page --------------------------------------------------------------------------------------------------------------


def sample_scaling() -> dict[str, Any]:
    shares = dict.fromkeys(PHASES, 0.1)
    points = [
        {"sweep": sweep, "x": x, "label": f"{x}", "seconds": x / 100, "seconds_low": x / 110, "seconds_high": x / 90,
         "phases": shares, "memory": 10.0 * x, "tokens": 100 * x, "parameters": 1000 * x}
        for sweep in ("batch", "length", "vocabulary", "model") for x in (1, 2, 4)
    ]  # fmt: skip
    told = {"row": "scaling", "device": "cpu", "threads": 1, "points": points, "idle": True, "command": "python bench/scaling.py"}
    return told | {"machine": machine.describe(), "versions": machine.versions(), "date": "2026-01-01"}


def test_the_page_says_what_was_measured_and_what_was_not(measured: dict[str, Any], tmp_path: Path) -> None:
    short = measured | {"row": "grpo_short", "command": "python bench/grpo_short.py", "idle": True, "ratio": 1.5}
    short["borrowed"] = {"label": "1 thread, our switches", "ratio": 1.25}
    returns = compare([10.0, 11.0], [50.0, 51.0]) | {"env_steps": 1000, "command": "python bench/ppo_cartpole.py --equal-return"}
    pole = measured | {"row": "ppo_cartpole", "command": "c", "idle": False, "ratio": 9.0, "equal_return": returns}
    alone = measured | {"row": "gpu_grpo", "command": "g", "idle": True} | {key: None for key in ("peer", "ratio", "memory_peer")}
    missed = {"ours": 10.0, "least": 11.0, "memory_ours": 13.0, "most_memory": 12.0}
    sampling = measured | {"row": "gpu_sampling", "command": "s", "idle": True, "ratio": 9.0} | missed
    for each in (short, pole, alone, sampling, sample_scaling()):
        save(each, tmp_path)
    report.write(report.load(tmp_path), tmp_path)
    page = (tmp_path / "performance.md").read_text()
    assert "GRPO step, short prompts: 1.50 times as fast; at least 2 times the peer is wanted. Not reached." in page
    assert "GRPO step, short prompts: beside the other library with our switches, 1.25 times as fast." in page
    assert "; 1.25 with our switches |" in page
    assert "PPO, CartPole: measured while other processes" in page and "PPO, CartPole: the returns" in page
    assert "GPU: sampling, 135M: 10 s a nap" in page and "GPU: sampling, 135M: 13 MiB of memory" in page
    assert "GPU: GRPO step, 135M: only our side was measured" in page and "PPO, HalfCheetah: not measured yet" in page
    assert "`python bench/grpo_short.py`" in page and "10.5 ± 0.7, peer 50.5 ± 0.7" in page
    assert page.count("\n|---|") == 2
    for picture in ("performance.png", "performance-scaling.png"):
        assert picture in page and (tmp_path / picture).stat().st_size > 1000


def test_a_page_of_no_results_says_so(tmp_path: Path) -> None:
    report.write({}, tmp_path)
    page = (tmp_path / "performance.md").read_text()
    assert page.count("not measured yet") == 2 * len(report.ROWS) and ".png" not in page


# -- the rows themselves ---------------------------------------------------------------------------------------------------


def small(found: Row) -> Row:
    """The same sides on the least work that still has every part of it, in one setting each."""
    if hasattr(found.given, "batch"):
        given = dataclasses.replace(found.given, batch=8)
    elif hasattr(found.given, "text"):
        given = dataclasses.replace(found.given, text=dataclasses.replace(found.given.text, prompts=2, samples=4, max_tokens=4))
    elif hasattr(found.given, "tokens"):
        given = dataclasses.replace(found.given, rows=8, prompt_tokens=4, tokens=10)
    elif hasattr(found.given, "horizon"):
        given = dataclasses.replace(found.given, envs=2, horizon=32, epochs=1)
    else:
        given = dataclasses.replace(found.given, prompts=2, samples=min(found.given.samples, 4), max_tokens=4)
    one = {role: dataclasses.replace(getattr(found, role), settings=(Setting("1 thread"),)) for role in ("ours", "peer")}
    # So few answers differ in length and reward by chance; what the work fixes must still be the same.
    return dataclasses.replace(found, given=given, window=1, near={}, **one)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name if name in IN_SUITE else pytest.param(name, marks=pytest.mark.torture) for name in CPU_ROWS])
def test_both_sides_of_a_row_do_the_same_work(name: str) -> None:
    found: Row = importlib.import_module(name).ROW
    if importlib.util.find_spec(found.peer.package) is None:
        pytest.skip(f"{found.peer.package} is not installed: it belongs to the extra 'bench'")
    told = measure(small(found), windows=1, settle=0.0, listen=0.05)
    assert told["ratio"] > 0 and told["counts"]["ours"]["updates"] >= 1
    assert found.name == name and set(found.exact) <= set(told["counts"]["peer"])


@needs_sandbox
@pytest.mark.slow
@pytest.mark.parametrize("at_a_time", [1, 2])
def test_both_sides_run_the_same_programs(at_a_time: int) -> None:
    from sandbox_programs import ROW, ProgramWork, row_of

    found = dataclasses.replace(row_of(at_a_time), given=ProgramWork(programs=3, at_a_time=at_a_time), window=1)
    told = measure(found, windows=1, settle=0.0, listen=0.05)
    assert told["counts"]["ours"] == told["counts"]["peer"] == {"programs": 3, "right": 3} and told["ratio"] > 0
    assert (ROW.name in report.ROWS) and (found.name == ROW.name) == (at_a_time == 1)


@pytest.mark.slow
def test_supervised_fine_tuning_has_one_loss_ours_padded_and_packed() -> None:
    from sft_sides import SftWork, apart, first_losses

    losses = first_losses(SftWork(rows=8, prompt_tokens=4, tokens=10))
    assert losses["padded"] == pytest.approx(losses["ours"], rel=1e-5) and losses["packed"] == pytest.approx(
        losses["ours"], rel=1e-5
    )
    assert apart(losses) == [] and apart(losses | {"packed": 1.01 * losses["ours"]}) == ["packed"]


@pytest.mark.slow
def test_the_phases_of_a_step_are_found() -> None:
    from scaling import Point, measure_point

    given = TextWork(prompts=2, samples=4, max_tokens=4)
    told = measure_point(Point("batch", 8, "2 x 4", given), steps=1, threads=1)
    assert all(told["phases"][phase] > 0 for phase in PHASES)
    assert told["tokens"] == 2 * 4 * (4 + 6) and told["seconds"] > 0


@pytest.mark.slow
def test_both_sides_of_the_zoo_take_the_same_preset(tmp_path, monkeypatch, capsys):
    import rl_zoo

    monkeypatch.setattr(rl_zoo, "EPISODES", 2)
    monkeypatch.setattr(rl_zoo, "RESULTS", tmp_path / "rl_zoo.json")
    monkeypatch.setattr(sys, "argv", ["rl_zoo.py", "CartPole-v1", "--seeds", "1", "--share", "0.01"])
    judged, mean_return = [], rl_zoo.mean_return
    monkeypatch.setattr(rl_zoo, "mean_return", lambda *given: judged.append(type(given[0]).__name__) or mean_return(*given))
    rl_zoo.main()
    found = report.load(tmp_path)["rl_zoo"]["environments"]["CartPole-v1"]
    assert found["env_steps"] == 1024 and found["command"].endswith("--share 0.01")
    assert all(8 <= found[side]["mean"] <= 500 for side in ("ours", "stable-baselines3"))
    assert judged == ["DeployedPolicy", "PPO"], "both sides play the same episodes"
    monkeypatch.setattr(sys, "argv", ["rl_zoo.py", "CartPole-v1", "--seeds", "2", "--share", "0.01", "--go-on"])
    rl_zoo.main()
    more = report.load(tmp_path)["rl_zoo"]["environments"]["CartPole-v1"]
    assert len(judged) == 4, "only the seeds that were missing"
    for side in ("ours", "stable-baselines3"):
        assert len(more[side]["seeds"]) == 2 and more[side]["seeds"][:1] == found[side]["seeds"]


def test_frames_shrink_without_opencv_as_with_it() -> None:
    import cv2
    import numpy as np

    spec = importlib.util.spec_from_file_location("shrinking", FOLDER / "no_opencv" / "cv2.py")
    assert spec is not None and spec.loader is not None
    ours = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(ours)
    frame = np.random.default_rng(0).integers(0, 256, (210, 160), np.uint8)
    theirs = cv2.resize(frame, (84, 84), interpolation=cv2.INTER_AREA)
    apart = np.abs(ours.resize(frame, (84, 84)).astype(int) - theirs)
    assert apart.max() <= 1 and (apart > 0).mean() < 0.01, "halves are rounded to either side"
