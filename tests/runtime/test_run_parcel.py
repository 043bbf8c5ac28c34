"""What of a run goes to a worker on another machine, and what it must find there."""

from __future__ import annotations

from pathlib import Path

import tomli_w

from upslope.runtime.run_parcel import outside, packed_run, unpack_run


def test_plan_code_data_and_model_travel_and_nothing_else(tmp_path: Path):
    run, there = tmp_path / "run", tmp_path / "there"
    kept = {"run.toml": "a = 1", "code/mine-12/mine.py": "x = 1", "data/p.jsonl": "{}", "model/config.json": "{}"}
    left = {"checkpoints/step-000001/model.safetensors": "large", "logs/worker-0.txt": "said", "metrics.jsonl": "{}"}
    for name, content in (kept | left).items():
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text(content)
    there.mkdir()
    unpack_run(packed_run(run), there)
    assert {file.relative_to(there).as_posix(): file.read_text() for file in there.rglob("*") if file.is_file()} == kept


def test_what_is_read_where_it_is_must_be_there_too(tmp_path: Path):
    table = {
        "task": "{run}/data/small.jsonl", "model": "/models/base", "test_data": "",
        "data": {"{run}/data/small.jsonl": "12", "/disk/large.jsonl": "34"},
        "reward": ["rm:/runs/judge@56*0.5", "exact", "mine-12/mine.py:score@78", "json:schema=/disk/form.json"],
    }  # fmt: skip
    (tmp_path / "run.toml").write_text(tomli_w.dumps(table))
    assert outside(tmp_path) == ["/disk/form.json", "/disk/large.jsonl", "/models/base", "/runs/judge"]
    (tmp_path / "model").mkdir()  # of adapters on another run's weights, which the run keeps itself
    assert outside(tmp_path) == ["/disk/form.json", "/disk/large.jsonl", "/runs/judge"]
    (tmp_path / "run.toml").write_text(tomli_w.dumps({"model": "tiny:layers=1", "task": "reverse", "reward": [], "data": {}}))
    assert outside(tmp_path) == []
