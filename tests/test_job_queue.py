"""The queue of commands that many measurements on one machine go through."""

from __future__ import annotations

import json
import sys
import tarfile
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "bench"))

import job_queue
import off_policy_jobs
import off_policy_returns as returns
from job_queue import Job, Queue


def queue(out, *jobs, cores=2.0, gpu=0.0, minutes=10.0, grace=30.0):
    return Queue(list(jobs), out, cores, gpu, time.time() + 60 * minutes, grace)


def states(out):
    return {name: each["state"] for name, each in json.loads((out / "status.json").read_text())["jobs"].items()}


def test_jobs_run_and_their_results_and_words_are_kept(tmp_path):
    queue(
        tmp_path,
        Job("good", "echo said; echo found > $OUT/good.txt; mkdir -p $OUT/run/experience; touch $OUT/run/experience/0"),
        Job("bad", "echo why; exit 3"),
    ).run(pause=0.01)
    assert states(tmp_path) == {"good": "done", "bad": "failed"}
    assert (tmp_path / "results" / "good.txt").read_text() == "found\n" and (tmp_path / "logs" / "good.log").read_text() == "said\n"
    assert job_queue.ended(tmp_path) and "why" in job_queue.show(tmp_path)
    job_queue.pack(tmp_path, tmp_path / "all.tar.gz")
    with tarfile.open(tmp_path / "all.tar.gz") as archive:
        names = set(archive.getnames())
    assert {"status.json", "logs/bad.log", "results/good.txt", "results/run"} <= names and "results/run/experience" not in names


def test_what_fits_begins_in_order_and_what_does_not_fit_holds_nobody_up(tmp_path):
    until = "until [ -e $OUT/go ]; do sleep 0.02; done"
    made = queue(
        tmp_path, Job("first", until), Job("wide", "true", cores=2), Job("narrow", until), Job("third", "true"), cores=2
    )  # fmt: skip
    made._begin()
    assert [job.name for job in made._running()] == ["first", "narrow"]
    (tmp_path / "results" / "go").touch()
    made.run(pause=0.01)
    assert set(states(tmp_path).values()) == {"done"}


def test_slots_of_the_gpu_are_counted_apart(tmp_path):
    until = "until [ -e $OUT/go ]; do sleep 0.02; done"
    made = queue(tmp_path, Job("one", until, gpu=1), Job("two", until, gpu=1), Job("cpu", until), cores=8, gpu=1)
    made._begin()
    assert [job.name for job in made._running()] == ["one", "cpu"]
    (tmp_path / "results" / "go").touch()
    made.run(pause=0.01)


def test_at_the_deadline_partial_results_are_kept_and_nothing_goes_on(tmp_path):
    asked = "trap 'echo asked > $OUT/asked; exit 0' TERM; touch $OUT/begun; while :; do sleep 0.02; done"
    deaf = "trap '' TERM; (while :; do sleep 0.02; touch $OUT/still; done) & wait; wait"
    made = queue(
        tmp_path, Job("asked", asked, partial=True, minutes=99), Job("deaf", deaf), Job("late", "true", cores=2), grace=0.3
    )
    made._begin()
    while not ((tmp_path / "results" / "begun").exists() and (tmp_path / "results" / "still").exists()):
        time.sleep(0.01)
    made.until = time.time()
    made.run(pause=0.01)
    assert states(tmp_path) == {"asked": "cut", "deaf": "cut", "late": "left"}
    assert (tmp_path / "results" / "asked").read_text() == "asked\n"
    (tmp_path / "results" / "still").unlink()
    time.sleep(0.2)
    assert not (tmp_path / "results" / "still").exists()


def test_what_would_end_too_late_is_not_begun_unless_a_part_of_it_is_of_use(tmp_path):
    queue(tmp_path, Job("long", "true", minutes=20), Job("part", "true", minutes=20, partial=True), minutes=10).run(pause=0.01)
    assert states(tmp_path) == {"long": "left", "part": "done"}


def test_a_list_that_cannot_be_run_is_refused(tmp_path):
    with pytest.raises(SystemExit, match="two jobs are named 'a'"):
        queue(tmp_path, Job("a", "true"), Job("a", "true"))
    with pytest.raises(SystemExit, match="'a' wants 3 cores and 0 of the GPU"):
        queue(tmp_path, Job("a", "true", cores=3))


def test_a_job_is_told_how_much_time_is_left(tmp_path):
    queue(tmp_path, Job("one", "echo $MINUTES > $OUT/left"), minutes=7).run(pause=0.01)
    assert 6.5 < float((tmp_path / "results" / "left").read_text()) <= 7


def test_from_the_command_line(tmp_path, capsys):
    (tmp_path / "jobs.json").write_text(json.dumps([{"name": "one", "command": "echo 1 > $OUT/one"}]))
    job_queue.main(["run", str(tmp_path / "jobs.json"), "--out", str(tmp_path / "out"), "--cores", "1"])
    job_queue.main(["wait", "--out", str(tmp_path / "out"), "--seconds", "1"])
    job_queue.main(["pack", str(tmp_path / "all.tar.gz"), "--out", str(tmp_path / "out")])
    assert "done" in capsys.readouterr().out and (tmp_path / "all.tar.gz").exists()


def test_the_list_of_measurements_is_one_that_the_queue_takes(tmp_path, capsys):
    (tmp_path / "first.json").write_text(json.dumps([{"name": "pong", "command": "true", "cores": 6, "gpu": 1}]))
    off_policy_jobs.main(["--peers", "cpu", "--claims", "h2o=3,4", "--claims", "cql=1", "--before", str(tmp_path / "first.json")])
    (tmp_path / "jobs.json").write_text(capsys.readouterr().out)
    made = queue(tmp_path, *job_queue.load(tmp_path / "jobs.json"), cores=16, gpu=4)
    names = list(made.states)
    assert names[:3] == ["pong", "sac-1m", "td3-1m"] and names[-3:] == ["claim-h2o-3", "claim-cql-1", "claim-h2o-4"]
    assert {f"{method}-{side}-{seed}" for method in returns.UPDATES for side in ("ours", "peer") for seed in range(3)} <= set(names)
