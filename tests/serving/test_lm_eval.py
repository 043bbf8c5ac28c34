"""lm-evaluation-harness reads a checkpoint and asks ``upslope serve``: the same numbers, of generation and of multiple choice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import upslope as up
from upslope.serving.server import Server, load_served
from upslope.tasks import load_task

GENERATION = """
task: reverse_written
dataset_path: json
dataset_kwargs: {{data_files: {{test: {problems}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{prompt}}}}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: ["\\n"], max_gen_toks: 8, do_sample: false}}
metric_list: [{{metric: exact_match}}]
"""
CHOICE = """
task: reverse_chosen
dataset_path: json
dataset_kwargs: {{data_files: {{test: {problems}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{prompt}}}}"
doc_to_target: right
doc_to_choice: choices
target_delimiter: ""
metric_list: [{{metric: acc}}]
"""


def write_tasks(folder: Path) -> None:
    """Forty problems of words to be reversed, and four answers to choose from for each, near misses among them."""
    task: Any = load_task("reverse:length=3")
    rows = []
    for number, problem in enumerate(task.sample(40, "train", np.random.default_rng(0))):
        word = problem.answer
        others = {word[::-1], word[1:] + word[:1], word[:-1] + "e", "abc", "bde", "jig"} - {word}
        choices = sorted(others)[:3]
        choices.insert(number % 4, word)
        rows.append({"prompt": problem.prompt, "answer": word, "choices": choices, "right": number % 4})
    problems = folder / "problems.jsonl"
    problems.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "reverse_written.yaml").write_text(GENERATION.format(problems=problems))
    (folder / "reverse_chosen.yaml").write_text(CHOICE.format(problems=problems))


def results(model: Any, folder: Path) -> tuple[dict[str, float], list[list[float]]]:
    """Both scores, and the log-likelihoods of all choices."""
    import lm_eval
    from lm_eval.tasks import TaskManager

    names = ["reverse_written", "reverse_chosen"]
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    found = lm_eval.simple_evaluate(model=model, tasks=names, task_manager=manager, bootstrap_iters=0)
    assert found is not None
    scores = {"written": found["results"][names[0]]["exact_match,none"], "chosen": found["results"][names[1]]["acc,none"]}
    samples = sorted(found["samples"][names[1]], key=lambda sample: sample["doc_id"])
    return scores, [[float(answer[0]) for answer in sample["filtered_resps"]] for sample in samples]


@pytest.mark.slow
@pytest.mark.oracle("lm-eval")
def test_a_checkpoint_and_the_server_are_judged_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "HF_EVALUATE_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    torch.set_num_threads(1)
    from lm_eval.models.huggingface import HFLM
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    run = up.train("grpo", "reverse:length=3", steps=0, eval_problems=10, out=tmp_path / "run", record="none")
    checkpoint = str(run.folder.latest())
    tasks = tmp_path / "tasks"
    tasks.mkdir()
    write_tasks(tasks)
    direct, own = results(HFLM(pretrained=checkpoint, device="cpu", dtype="float32", add_bos_token=True, batch_size=8), tasks)
    with Server(load_served(checkpoint), port=0, name="model") as server:
        asked = LocalCompletionsAPI(
            base_url=f"{server.url}/v1/completions", model="model", tokenizer=checkpoint, tokenizer_backend="huggingface",
            add_bos_token=True, max_length=512, batch_size=4,
        )  # fmt: skip
        served, theirs = results(asked, tasks)
    assert direct == served
    assert 0.1 < direct["written"] < 1 and 0.3 < direct["chosen"] <= 1, "else nothing is compared"
    torch.testing.assert_close(torch.tensor(own), torch.tensor(theirs), atol=1e-4, rtol=1e-4)
