"""What the board's server answers: about runs the library wrote, about hostile ones, and while they change."""

from __future__ import annotations

import gzip
import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from board_folders import append, client, plan, step, write_rollout, write_run
from starlette.testclient import TestClient

import upslope as up
from upslope.board import recordings
from upslope.board.plan_view import changed_knobs, command, method_view, slot_text
from upslope.methods import catalogue
from upslope.report.describe import changes, slots
from upslope.runtime.method_file import method_table
from upslope.types import SLOTS


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs as the library writes them."""
    root = tmp_path_factory.mktemp("runs")
    small: dict[str, Any] = {"model": "tiny:layers=1,width=32", "warm_start": 0.0, "eval_problems": 4, "tasks_per_step": 2}
    for seed in range(2):
        up.train("dhpo", "reverse:length=2", seed=seed, steps=3, samples_per_task=3, out=root / f"dhpo-{seed}", **small)
    high = {"surrogate.high": 0.3}
    up.train("grpo", "reverse:length=2", steps=3, knobs=high, record="all", samples_per_task=3, out=root / "more" / "grpo", **small)
    up.train("ppo", "gym:CartPole-v1", steps=2, envs=2, horizon=16, passes=1, eval_problems=2, out=root / "cart")
    return root


@pytest.fixture(scope="module")
def board(real: Path) -> TestClient:
    return client(real)


def asked(board: TestClient, path: str, **params: Any) -> Any:
    answer = board.get(f"/api/{path}", params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


# -- real runs -------------------------------------------------------------------------------------------------------------


def test_the_list_has_every_run(board: TestClient, real: Path):
    found = asked(board, "runs")
    assert found["allow_control"] is False and found["version"] == up.__version__ and found["gone"] == []
    runs = {each["id"]: each for each in found["runs"]}
    assert set(runs) == {"dhpo-0", "dhpo-1", "more/grpo", "cart"}
    summary = up.load(real / "dhpo-1").summary
    one = runs["dhpo-1"]
    assert (one["score"], one["seconds"], one["tokens"]) == (summary["score_after"], summary["seconds"], summary["tokens"])
    assert (one["method"], one["family"], one["seed"], one["step"], one["status"]) == ("dhpo", "rlvr", 1, 3, "finished")
    assert runs["more/grpo"]["group"] == "more" and runs["more/grpo"]["name"] == "grpo" and one["recorded"]
    assert runs["cart"]["domain"] == "control" and runs["cart"]["score_name"] == "mean return" and len(runs["cart"]["spark"]) > 0
    assert asked(board, "runs", since=found["revision"])["runs"] == []


def test_curves_are_what_was_measured(board: TestClient, real: Path):
    metrics = up.load(real / "dhpo-0").metrics
    (curve,) = asked(board, "curves", run="dhpo-0", key="entropy", x="step")["curves"]
    assert curve["x"] == [1, 2, 3] and curve["y"] == pytest.approx([each["entropy"] for each in metrics], rel=1e-6)
    tokens = [each["tokens"] for each in metrics]
    two = asked(board, "curves", run=["dhpo-0", "more/grpo"], key="reward", x="tokens")["curves"]
    assert [each["run"] for each in two] == ["dhpo-0", "more/grpo"]
    assert two[0]["x"] == [tokens[0], tokens[0] + tokens[1], sum(tokens)]
    (score,) = asked(board, "curves", run="cart", key="score")["curves"]
    measured = up.load(real / "cart").evaluations
    assert score["evaluation"]["y"] == pytest.approx([each["score"] for each in measured], rel=1e-6)
    assert score["evaluation"]["low"] == pytest.approx([each["low"] for each in measured], rel=1e-6)
    keys = asked(board, "keys", run="dhpo-0")
    assert {"reward", "entropy", "memory", "samples"} <= set(keys["step"]) and "score" in keys["evaluation"]


def test_seeds_make_a_band_and_other_knobs_another(board: TestClient):
    runs = ["dhpo-0", "dhpo-1", "more/grpo"]
    bands = asked(board, "bands", run=runs, key="entropy")["bands"]
    assert [(each["label"], each["runs"]) for each in bands] == [("dhpo", runs[:2]), ("grpo", runs[2:])]
    singles = [asked(board, "curves", run=run, key="entropy")["curves"][0]["y"] for run in runs[:2]]
    assert bands[0]["mean"] == pytest.approx([sum(pair) / 2 for pair in zip(*singles, strict=True)], rel=1e-6)
    assert all(low <= mean <= high for low, mean, high in zip(bands[0]["low"], bands[0]["mean"], bands[0]["high"], strict=True))
    assert bands[1]["low"] == [None, None, None]
    scores = asked(board, "bands", run=runs[:2], key="score", x="samples")["bands"]
    assert scores[0]["x"] == [0, 18]


def test_a_recorded_step_is_passed_on_as_it_was_recorded(board: TestClient, real: Path):
    found = asked(board, "rollouts", run="more/grpo")
    assert found["steps"] == [1, 2, 3] and [each["step"] for each in found["jumps"]] == [1, 2, 3]
    file = real / "more" / "grpo" / "rollouts" / "step-000002.json.gz"
    assert asked(board, "rollout", run="more/grpo", step=2) == json.loads(gzip.decompress(file.read_bytes()))
    missing = board.get("/api/rollout", params={"run": "more/grpo", "step": 7})
    assert missing.status_code == 404 and "step 7" in missing.json()["error"]


def test_an_episode_comes_with_its_pictures(board: TestClient):
    found = asked(board, "episodes", run="cart")
    assert found["steps"] == [0, 2] and len(found["returns"]["step"]) == len(found["returns"]["y"]) == 2
    episode = asked(board, "episode", run="cart", step=2)
    assert len(episode["rewards"]) == episode["length"] and episode["frames"]["count"] > 1 and episode["why"] == ""
    picture = board.get("/api/frames", params={"run": "cart", "step": 2})
    assert picture.headers["content-type"] == "image/png" and picture.content.startswith(b"\x89PNG")
    assert board.get("/api/frames", params={"run": "cart", "step": 1}).status_code == 404


def test_the_method_of_a_run_shows_what_was_changed(board: TestClient):
    found = asked(board, "method", run="more/grpo")
    rows = {each["slot"]: each for each in found["slots"]}
    assert rows["surrogate"]["value"] == "PessimisticClip(low=0.2, high=0.3, dual=inf)" and rows["surrogate"]["changed"]
    assert not rows["ratio"]["changed"] and rows["ratio"]["value"] == rows["ratio"]["was"] and rows["ratio"]["about"]
    assert found["formula_mathml"].startswith("<math") and found["paper"]["arxiv"] == "2402.03300"
    assert asked(board, "method", name="dhpo")["parent"] == "grpo"
    unknown = board.get("/api/method", params={"name": "dhpoo"})
    assert unknown.status_code == 400 and "Did you mean 'dhpo'" in unknown.json()["error"]


def test_the_catalogue_and_the_tasks_are_listed(board: TestClient):
    assert [each["name"] for each in asked(board, "methods")] == list(catalogue())
    assert {"reverse", "gym:ID"} <= {each["name"] for each in asked(board, "tasks")}


def test_the_settings_come_with_the_command_that_gives_them(board: TestClient, real: Path):
    found = asked(board, "settings", run="more/grpo")
    assert found["settings"]["tasks_per_step"] == 2 and found["task"] == "reverse:length=2" and found["build"]["python"]
    words = shlex.split(found["command"])
    assert words[:5] == ["upslope", "train", "grpo", "--task", "reverse:length=2"]
    assert words[words.index("--set") + 1] == "surrogate.high=0.3" and "--lr" not in words and "--device" not in words


def test_the_page_is_served_with_a_tag_that_spares_the_second_reading(board: TestClient):
    first = board.get("/")
    assert first.status_code == 200 and first.headers["content-type"].startswith("text/html") and "etag" in first.headers
    again = board.get("/", headers={"If-None-Match": first.headers["etag"]})
    assert again.status_code == 304 and not again.content
    assets = re.findall(r'(?:src|href)="/?(page/[^"]+)"', first.text)
    assert assets and all(board.get(f"/{name}").status_code == 200 for name in assets)


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/api/curves?run=dhpo-0&key=reward&x=parsecs", 400, "no axis 'parsecs'"),
        ("/api/curves?run=dhpo-0&key=reward&points=0", 400, "points"),
        ("/api/curves?run=dhpo-0&key=reward&points=99999999", 400, "points"),
        ("/api/curves?key=reward", 400, "run"),
        ("/api/curves?run=nobody&key=reward", 404, "run 'nobody' is gone"),
        ("/api/rollout?run=dhpo-0&step=-1", 400, "step"),
        ("/api/rollout?run=dhpo-0&step=1e9", 400, "step"),
        ("/api/rollout?run=dhpo-0&step=../1", 400, "step"),
        ("/api/runs?since=x", 400, "since"),
        ("/api/method", 400, "say which"),
        ("/api/nothing", 404, "nothing at"),
        ("/api/bands?key=a&" + "&".join(f"run=r{number}" for number in range(501)), 400, "501 runs"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_sentence(board: TestClient, path: str, status: int, said: str):
    answer = board.get(path)
    assert answer.status_code == status and said in answer.json()["error"] and set(answer.json()) == {"error"}


def test_a_run_among_several_that_is_gone_leaves_the_others(board: TestClient):
    found = asked(board, "curves", run=["dhpo-0", "nobody"], key="reward")
    assert [each["run"] for each in found["curves"]] == ["dhpo-0"] and found["gone"] == ["nobody"]


# -- hostile and broken ----------------------------------------------------------------------------------------------------

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\u202e\x00\x1b[31m</title>"


def test_what_a_model_wrote_stays_text(tmp_path: Path):
    run = write_run(tmp_path / "a")
    write_rollout(run, 1, {"version": 1, "groups": [{"prompt": HOSTILE, "samples": [{"response": HOSTILE, "pieces": [HOSTILE]}]}]})
    answer = client(tmp_path).get("/api/rollout?run=a&step=1")
    assert answer.headers["content-type"] == "application/json" and answer.headers["x-content-type-options"] == "nosniff"
    assert answer.json()["groups"][0]["samples"][0]["pieces"] == [HOSTILE]


def test_halves_of_characters_and_numbers_that_are_none_reach_the_page_as_json(tmp_path: Path):
    run = write_run(tmp_path / "a")
    write_rollout(run, 1, b'{"groups": [], "half": "\\ud83d", "nan": NaN, "inf": [1e999, -Infinity, 2.5]}')
    answer = client(tmp_path).get("/api/rollout?run=a&step=1")

    def refuse(name: str) -> None:
        pytest.fail(f"{name} in JSON")

    found = json.loads(answer.content, parse_constant=refuse)
    assert found["nan"] is None and found["inf"] == [None, None, 2.5] and found["half"] == "\ud83d"


@pytest.mark.parametrize(
    ("packed", "status", "said"),
    [
        (gzip.compress(b"\xff\xfe not text"), 422, "not JSON"),
        (gzip.compress(b"[1]"), 422, "no JSON object"),
        (gzip.compress(b"{}")[:-9], 422, "ends in the middle"),
        (b"no gzip at all", 422, "cannot be unpacked"),
        (b"", 422, "ends in the middle"),
        (gzip.compress(b'{"a": ' + b"[" * 200_000), 422, "not JSON"),
    ],
    ids=["bytes", "list", "cut", "plain", "empty", "deep"],  # what gzip writes holds the time: processes must agree on names
)
def test_a_recording_that_cannot_be_read_says_why(tmp_path: Path, packed: bytes, status: int, said: str):
    run = write_run(tmp_path / "a")
    write_rollout(run, 1, {}).write_bytes(packed)
    answer = client(tmp_path).get("/api/rollout?run=a&step=1")
    assert answer.status_code == status and said in answer.json()["error"] and "step-000001" in answer.json()["error"]


def test_a_recording_that_unpacks_to_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(recordings, "MOST", 100_000)
    run = write_run(tmp_path / "a")
    bomb = write_rollout(run, 1, b'{"a": "' + b"x" * 10_000_000 + b'"}')
    assert bomb.stat().st_size < 100_000
    answer = client(tmp_path).get("/api/rollout?run=a&step=1")
    assert answer.status_code == 413 and "unpacks to more than" in answer.json()["error"]
    bomb.write_bytes(b"x" * 100_001)
    assert client(tmp_path).get("/api/rollout?run=a&step=1").status_code == 413


def test_a_bomb_is_stopped_while_it_unpacks(monkeypatch: pytest.MonkeyPatch):
    import tracemalloc

    monkeypatch.setattr(recordings, "MOST", 1_000_000)
    packed = gzip.compress(bytes(50_000_000), 1)
    tracemalloc.start()
    with pytest.raises(recordings.safe_files.TooLarge):
        recordings._unpacked(packed, "x")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 10_000_000


def test_a_plan_that_names_code_runs_none_of_it(tmp_path: Path):
    marker = tmp_path / "ran"
    run = write_run(tmp_path / "runs" / "a")
    (run / "code").mkdir()
    (run / "code" / "evil.py").write_text(f"open({str(marker)!r}, 'w')\n")
    table = plan("grpo")
    table["task"] = "code/evil.py:Task"
    table["method"] |= {"name": "<b>mine</b>", "formula": "<script>x</script>", "parent": "grpo"}
    table["method"]["advantage"] = {"part": "evil.py@0123:Part", "low": [1, 2], "deep": {"part": "upslope.__main__:x", "y": 0.5}}
    table["method"]["regularize"] = [{"part": 7}, 3]
    (run / "run.toml").write_text(tomli_w.dumps(table))
    board = client(tmp_path / "runs")
    for path in ("method", "settings", "bands", "curves", "keys", "runs"):
        answer = board.get(f"/api/{path}?run=a&key=reward")
        assert answer.status_code == 200, answer.text
    view = board.get("/api/method?run=a").json()
    assert {row["slot"]: row["value"] for row in view["slots"]}["advantage"] == "Part(low=(1, 2), deep=x(y=0.5))"
    assert "<script>" not in view["formula_mathml"] and not marker.exists()


def test_a_broken_plan_is_refused_in_words(tmp_path: Path):
    run = write_run(tmp_path / "a")
    board = client(tmp_path)
    (run / "run.toml").write_text("method = 3")
    for path in ("method", "settings"):
        answer = board.get(f"/api/{path}?run=a")
        assert answer.status_code == 422 and "run.toml" in answer.json()["error"]
    assert board.get("/api/bands?run=a&key=reward").json()["bands"] == []


# -- runs that change ------------------------------------------------------------------------------------------------------


def test_a_live_run_grows_under_the_eyes_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("upslope.board.index.FRESH", 0.0)
    run = write_run(tmp_path / "a", steps=5, finished=False)
    board = client(tmp_path)
    first = asked(board, "runs")
    assert asked(board, "curves", run="a", key="reward")["curves"][0]["x"] == [1, 2, 3, 4, 5]
    append(run, step(6), '{"kind": "step", "st')
    assert asked(board, "curves", run="a", key="reward")["curves"][0]["x"][-1] == 6
    changed = asked(board, "runs", since=first["revision"])
    assert [each["step"] for each in changed["runs"]] == [6] and changed["runs"][0]["status"] == "running"
    shutil.rmtree(run)
    assert asked(board, "runs", since=changed["revision"])["gone"] == ["a"]
    for path in ("curves", "keys", "rollouts", "settings", "episodes"):
        answer = board.get(f"/api/{path}?run=a&key=reward")
        assert answer.status_code == 404 and "gone" in answer.json()["error"]


def test_a_plan_that_was_kept_does_not_outlive_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("upslope.board.index.FRESH", 0.0)
    run = write_run(tmp_path / "a")
    board = client(tmp_path)
    assert asked(board, "settings", run="a")["task"] == "reverse"
    (run / "run.toml").write_text(tomli_w.dumps(plan(task="sort")))
    assert asked(board, "settings", run="a")["task"] == "sort"
    shutil.rmtree(run)
    assert board.get("/api/settings?run=a").status_code == 404


def test_an_empty_folder_and_one_that_is_not_there_yet_have_no_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("upslope.board.index.FRESH", 0.0)
    board = client(tmp_path / "later")
    assert asked(board, "runs")["runs"] == []
    write_run(tmp_path / "later" / "a")
    assert [each["id"] for each in asked(board, "runs")["runs"]] == ["a"]


# -- every method ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", catalogue().values(), ids=lambda each: each.name)
def test_a_method_is_shown_as_the_command_line_shows_it(method: Any):
    view = method_view(method_table(method), ())
    rows = {row["slot"]: row for row in view["slots"]}
    assert {slot: row["value"] for slot, row in rows.items() if row["value"] != "none"} == slots(method)
    assert {slot: (row["was"], row["value"]) for slot, row in rows.items() if row["changed"]} == {
        slot: change for slot, change in changes(method).items() if slot in SLOTS
    }
    assert all(row["about"] for row in rows.values() if row["value"] != "none")
    assert slot_text("weight", []) == "none" and set(rows) <= set(SLOTS)


def test_a_command_says_what_was_changed_and_no_more():
    assert (
        command(plan("dapo", "sort", tasks_per_step=8, seed=3))
        == "upslope train dapo --task sort --seed 3 --tasks-per-step 8 --max-tokens 8"
    )
    control = command(plan("ppo", "gym:CartPole-v1", {"surrogate.high": 0.5}, steps=20))
    assert control.startswith("upslope train ppo --task gym:CartPole-v1 --set surrogate.high=0.5 --steps 20")
    table = plan("grpo") | {"model": "a folder; rm", "reward": "my file.py:score", "trackers": ["tensorboard"]}
    assert "--model 'a folder; rm' --reward 'my file.py:score' --tracker tensorboard" in command(table)
    assert changed_knobs(plan("grpo")) == {} and changed_knobs(plan("ppo")) == {}
    assert changed_knobs(plan("grpo", knobs={"regularize.weight": 0.5})) == {"regularize.weight": 0.5}


def test_the_command_of_a_run_gives_the_same_plan_again(real: Path, tmp_path: Path):
    from upslope.cli import main

    for name in ("more/grpo", "cart"):
        words = shlex.split(client(real).get("/api/settings", params={"run": name}).json()["command"])
        assert main([*words[1:], "--out", str(tmp_path / name), "--quiet"]) == 0
        assert (tmp_path / name / "run.toml").read_text() == (real / name / "run.toml").read_text()
