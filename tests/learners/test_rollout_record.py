"""What a run keeps for the inspector is what happened, and keeping it changes nothing."""

import gzip
import json
import math
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
import pytest

import upslope as up
from upslope.errors import UserError
from upslope.learners.rollout_record import GROUPS, SAMPLES, rounded
from upslope.policies.token_text import TokenText
from upslope.rollout.recorded_episode import play
from upslope.run import Watcher
from upslope.runtime import run_folder
from upslope.runtime.run_folder import RunFolder
from upslope.tasks import load_task
from upslope.tasks.drawing import draw

LETTERS = "def score(prompts, responses, answers):\n    return [sum(map(str.isalpha, r)) / 4 for r in responses]\n"
TEXT = {
    "model": "tiny:layers=1,width=32", "steps": 4, "tasks_per_step": 6, "samples_per_task": 4, "updates_per_step": 1, "lr": 3e-3,
    "warmup": 0, "max_tokens": 4, "warm_start": 0.0, "eval_problems": 4, "checkpoint_every": 2,
}  # fmt: skip
CLOCK = {"seconds", "seconds_sampling", "tokens_per_second", "memory"}


def trained(folder: Path, method: str = "grpo", name: str = "run", **settings):
    (folder / "data.jsonl").write_text("".join(json.dumps({"prompt": f"{i}+{i}=", "answer": str(2 * i)}) + "\n" for i in range(20)))
    (folder / "letters.py").write_text(LETTERS)
    data = {"task": str(folder / "data.jsonl"), "reward": f"{folder / 'letters.py'}:score", "out": folder / name}
    return up.train(method, **{**TEXT, **data, **settings})


def samples_of(run, step: int) -> list[dict]:
    return [sample for group in run.folder.read_rollouts(step)["groups"] for sample in group["samples"]]


def test_recording_changes_nothing(tmp_path):
    runs = [trained(tmp_path, name=record, record=record, updates_per_step=2) for record in ("none", "some", "all")]
    metrics = [[{k: v for k, v in record.items() if k not in CLOCK} for record in run.metrics] for run in runs]
    assert metrics[0] == metrics[1] == metrics[2]
    assert [len(run.folder.rollout_steps()) for run in runs] == [0, 4, 4]


def test_recorded_numbers_are_those_the_step_learned_from(tmp_path):
    run = trained(tmp_path, record="all", updates_per_step=2)
    for step, metrics in enumerate(run.metrics, 1):
        record = run.folder.read_rollouts(step)
        rows = [sample for group in record["groups"] for sample in group["samples"]]
        assert record["rows"] == len(rows) == 24 and record["tasks"] == len(record["groups"]) == 6
        assert fmean(row["reward"] for row in rows) == pytest.approx(metrics["reward"], rel=1e-5)
        assert sum(map(len, (row["pieces"] for row in rows))) == metrics["tokens"]
        assert fmean(value for row in rows for value in row["entropy"]) == pytest.approx(metrics["entropy"], rel=1e-4)
        clipped = [value for row in rows for value in row["clipped"] if value is not None]
        assert sum(map(abs, clipped)) / metrics["tokens"] == pytest.approx(metrics["clip_fraction"], rel=1e-4)
        for group in record["groups"]:
            rewards = [sample["reward"] for sample in group["samples"]]
            for sample in group["samples"]:
                spread = stdev(rewards)
                wanted = (sample["reward"] - fmean(rewards)) / (spread + 1e-4) if spread else 0.0
                assert sample["advantages"] == pytest.approx([wanted] * len(sample["pieces"]), rel=1e-3)
                assert group["constant"] == (min(rewards) == max(rewards))
    ratios = [value for step in range(1, 5) for row in samples_of(run, step) for value in row["ratio"] if value is not None]
    assert any(abs(value - 1) > 1e-3 for value in ratios), "two updates a step move the policy between them"


def test_in_a_single_update_the_policy_is_still_the_one_that_sampled(tmp_path):
    run = trained(tmp_path, record="all")
    for row in samples_of(run, 2):
        assert row["ratio"] == pytest.approx([1.0] * len(row["ratio"]), abs=1e-4) or row["advantage"] == 0


def test_a_rows_lists_have_one_entry_a_token(tmp_path):
    run = trained(tmp_path, method="dhpo", record="all")
    for row in samples_of(run, 1):
        lists = [value for value in row.values() if isinstance(value, list)]
        assert {len(value) for value in lists} == {len(row["pieces"])} and len(lists) == 9
        said = [piece for piece in row["pieces"] if piece not in ("<pad>", "<bos>", "<eos>", "<unk>")]
        assert "".join(said) == row["response"]


def test_some_holds_the_rows_worth_looking_at(tmp_path):
    settings = {"updates_per_step": 2, "tasks_per_step": 12, "samples_per_task": 12}
    some, everything = (trained(tmp_path, name=record, record=record, **settings) for record in ("some", "all"))
    looks = {"some": some.folder.read("rollouts.jsonl"), "all": everything.folder.read("rollouts.jsonl")}
    for one, other in zip(looks["some"], looks["all"], strict=True):
        assert {key: one[key] for key in ("most_clipped", "highest_advantage", "longest")} == {
            key: other[key] for key in ("most_clipped", "highest_advantage", "longest")
        }
        record = some.folder.read_rollouts(one["step"])
        assert len(record["groups"]) <= GROUPS and all(len(group["samples"]) <= SAMPLES for group in record["groups"])
        rows = {sample["row"]: sample for group in record["groups"] for sample in group["samples"]}
        best = max(sample["advantage"] for sample in samples_of(everything, one["step"]))
        assert rows[one["highest_advantage"]["row"]]["advantage"] == best == one["highest_advantage"]["value"]
        assert len(rows[one["longest"]["row"]]["pieces"]) == one["longest"]["value"]


def test_recording_some_takes_a_bounded_share_of_the_time(tmp_path, monkeypatch):
    monkeypatch.setattr("upslope.setting_up.text.FREE_RECORDING", 0.0)
    monkeypatch.setattr("upslope.setting_up.text.RECORDING", 0.0)
    some, everything = (trained(tmp_path, name=record, record=record, steps=5) for record in ("some", "all"))
    assert some.folder.rollout_steps() == [1, 5], "the first, which nothing was known of, and the last"
    assert everything.folder.rollout_steps() == [1, 2, 3, 4, 5]


def test_rows_that_a_filter_dropped_are_shown_without_an_update(tmp_path):
    run = trained(tmp_path, method="dapo", record="all", samples_per_task=2, tasks_per_step=8)
    rows = [row for step in run.folder.rollout_steps() for row in samples_of(run, step)]
    dropped = [row for row in rows if not row["kept"]]
    assert dropped and len(dropped) < len(rows)
    for row in dropped:
        assert row["advantage"] is None and "ratio" not in row and len(row["logp"]) == len(row["pieces"])


def test_a_group_shows_what_its_gate_let_it_learn_from(tmp_path):
    run = trained(tmp_path, "hpt")
    groups = run.folder.read_rollouts(1)["groups"]
    assert groups and all(group["gate"]["solved"] == sum(s["reward"] >= 1 for s in group["samples"]) for group in groups)
    assert {group["gate"]["imitation"] for group in groups if not group["gate"]["solved"]} == {1.0}
    assert not any("gate" in group for group in trained(tmp_path, name="plain").folder.read_rollouts(1)["groups"])


def test_an_answer_with_a_hint_shows_the_prompt_it_was_sampled_in_beside_the_one_it_answers(tmp_path):
    groups = trained(tmp_path, "ghpo", record="all", knobs={"data.success": 2.0}).folder.read_rollouts(1)["groups"]
    guided = [(group, row) for group in groups for row in group["samples"] if row["source"] == "further"]
    assert guided
    for group, row in guided:
        assert row["asked"].startswith(f"{group['prompt']}\nThe following") and row["turn"] == "asked" and row["hint_level"] >= 1
    own = [row for group in groups for row in group["samples"] if row["source"] == "fresh"]
    assert own and not any("asked" in row or row["kept"] for row in own), "what it took the place of"


def test_a_group_shows_why_its_problem_was_chosen(tmp_path):
    groups = trained(tmp_path, "spo-single-stream", samples_per_task=2).folder.read_rollouts(1)["groups"]
    assert groups and all(group["chosen"]["weight"] > 0 and group["chosen"]["answers"] == 2 for group in groups)


def test_a_step_of_which_nothing_is_kept_shows_what_was_dropped_and_not_the_step_before(tmp_path):
    (tmp_path / "same.py").write_text("def score(prompts, responses, answers):\n    return [0.0] * len(responses)\n")
    run = trained(tmp_path, method="dapo", record="all", reward=f"{tmp_path / 'same.py'}:score", steps=2)
    assert run.folder.rollout_steps() == [1, 2] and run.folder.read("samples.jsonl") == []
    one, other = (samples_of(run, step) for step in (1, 2))
    assert one and other and not any(row["kept"] for row in (*one, *other))
    assert [row["ids"] for row in one] != [row["ids"] for row in other]
    assert all(line["most_clipped"] is line["highest_advantage"] is None for line in run.folder.read("rollouts.jsonl"))


def test_a_resumed_run_records_what_an_uninterrupted_one_does(tmp_path):
    whole = trained(tmp_path, name="whole")

    class Breaks(Watcher):
        def stepped(self, step, metrics):
            if step == 4:
                raise RuntimeError("crash")

    with pytest.raises(RuntimeError, match="crash"):
        trained(tmp_path, name="broken", watcher=Breaks())
    folder = RunFolder(tmp_path / "broken")
    assert folder.rollout_steps() == [1, 2, 3, 4] and folder.latest().name == "step-000002"
    resumed = up.resume(tmp_path / "broken")
    assert resumed.folder.rollout_steps() == whole.folder.rollout_steps() == [1, 2, 3, 4]
    for step in range(1, 5):
        assert resumed.folder.read_rollouts(step) == whole.folder.read_rollouts(step)
    assert resumed.folder.read("rollouts.jsonl") == whole.folder.read("rollouts.jsonl")


def test_a_rewind_drops_rollouts_after_the_checkpoint(tmp_path):
    folder = RunFolder(tmp_path)
    for step in (1, 2, 3):
        folder.write_rollouts({"step": step}, {"step": step})
    folder.rewind({"rollouts.jsonl": 2}, step=2)
    assert folder.rollout_steps() == [1, 2]


def test_rollouts_that_are_not_there_or_too_large_are_refused(tmp_path, monkeypatch):
    folder = RunFolder(tmp_path)
    with pytest.raises(UserError, match="no rollouts of step 3; it has none"):
        folder.read_rollouts(3)
    folder.write_rollouts({"step": 1, "long": "x" * 5000}, {"step": 1})
    with pytest.raises(UserError, match="no rollouts of step 3; it has 1 to 1"):
        folder.read_rollouts(3)
    assert folder.read_rollouts(1)["long"] == "x" * 5000
    monkeypatch.setattr(run_folder, "MOST_UNPACKED", 2000)
    with pytest.raises(UserError, match="too large"):
        folder.read_rollouts(1)
    assert len((tmp_path / "rollouts" / "step-000001.json.gz").read_bytes()) < 2000, "it is small while it is packed"
    assert json.loads(gzip.decompress((tmp_path / "rollouts" / "step-000001.json.gz").read_bytes()))["step"] == 1


def test_numbers_are_rounded_to_significant_digits():
    given = np.array([0.0, 1.23456789, -0.000123456789, 123456789.0, math.nan, math.inf])
    wanted = [0.0, 1.23457, -0.000123457, 123457000.0, math.nan, math.nan]
    np.testing.assert_allclose(rounded(given), wanted, rtol=1e-12)


def test_pieces_of_a_sentencepiece_tokenizer_keep_their_blanks():
    class Words:
        """Decodes a word by itself without the blank before it, as SentencePiece does."""

        names = ("▁two", "▁words", "s")

        def decode(self, ids, **_):
            return "".join(self.names[i] for i in ids).replace("▁", " ").strip()

        def convert_ids_to_tokens(self, token):
            return self.names[token]

    assert TokenText(Words())([0, 1, 2, 1]) == [" two", " words", "s", " words"]


def test_an_episode_is_kept_at_each_evaluation_and_can_be_repeated_and_drawn(tmp_path):
    from PIL import Image

    run = up.train(
        "ppo", "gym:CartPole-v1", steps=2, envs=2, horizon=32, passes=1, eval_problems=2, eval_every=1, out=tmp_path / "run"
    )
    assert run.folder.episode_steps() == [0, 1, 2] and run.folder.rollout_steps() == []
    record = json.loads((run.path / "episodes" / "step-000002.json").read_text())
    again = play(run.components.task, run.policy, run.components.rollout.observations, record["seed"], gamma=0.99).record(2)
    assert again == record and record["length"] == len(record["actions"]) == record["return"]
    layout = draw(load_task("gym:CartPole-v1"), record, tmp_path / "sheet.png")
    assert layout["count"] == math.ceil(record["length"] / layout["every"]) + 1
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.size == (
            layout["columns"] * layout["width"],
            math.ceil(layout["count"] / layout["columns"]) * layout["height"],
        )
        last = layout["count"] - 1
        corners = [
            (place % layout["columns"] * layout["width"], place // layout["columns"] * layout["height"]) for place in (0, last)
        ]
        first, final = (np.asarray(sheet.convert("RGB").crop((x, y, x + 240, y + 160))) for x, y in corners)
    assert (first != final).any(), "the pole falls"
    assert (first != 255).any(), "and is there to be seen"


def test_none_keeps_no_episode(tmp_path):
    run = up.train(
        "ppo", "gym:CartPole-v1", steps=1, envs=2, horizon=16, passes=1, eval_problems=1, record="none", out=tmp_path / "run"
    )
    assert run.folder.episode_steps() == []


def test_given_pairs_are_recorded_with_side_margin_and_likelihood(tmp_path):
    settings = {**TEXT, "record": "all", "steps": 2, "out": tmp_path / "pairs"}
    run = up.train("dpo", "reverse:length=3", **settings)
    for step, metrics in enumerate(run.metrics, 1):
        rows = samples_of(run, step)
        won, lost = ([row for row in rows if row["side"] == side] for side in (1, -1))
        assert len(won) == len(lost) == 6 and {row["finish"] for row in won} == {"chosen"}
        assert fmean(row["noted"]["margin"] for row in won) == pytest.approx(metrics["margin"], rel=1e-4, abs=1e-7)
        assert fmean(row["noted"]["logp_chosen"] for row in won) == pytest.approx(metrics["logp_chosen"], rel=1e-4)
        assert fmean(row["noted"]["logp_rejected"] for row in lost) == pytest.approx(metrics["logp_rejected"], rel=1e-4)
    assert all(not line["constant"] for line in run.folder.read("rollouts.jsonl"))


def test_compared_answers_are_recorded_with_their_chances_and_the_judges_questions(tmp_path):
    judged = {"judge": "policy", "judge_failures": 1.0, "knobs": {"data": "Compared()"}}
    run = trained(tmp_path, "grpo", **judged, steps=1, record="all", samples_per_task=3)
    rows = samples_of(run, 1)
    assert rows and all(set(row["compared"]) == {"win_rate", "win_rate_with_self", "beats_best", "beats_worst"} for row in rows)
    told = run.folder.read_rollouts(1)["judged"]
    assert len(told) == 8 and all(each["asked"].startswith("Here are a problem and two answers") for each in told)
