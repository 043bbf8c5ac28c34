"""With which policy a step is compared: the age of a snapshot."""

from __future__ import annotations

import copy
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tables import table_learner
from test_pinned_runs import build, fingerprint

import upslope as up
from upslope.errors import MethodError
from upslope.learners.references import References, reference_parts
from upslope.methods import find
from upslope.objective.base import Reference
from upslope.objective.references import Snapshot
from upslope.objective.regularize import ReferenceKL


@pytest.mark.parametrize(
    ("every", "steps_before"),
    [
        # The policy after so many steps, seen by step 1, 2, 3, ...: with every = 1 the one before the last step's updates.
        (1, [0, 0, 1, 2, 3]),
        # Snapshots are taken before steps 3, 5 and 7, and the one before the newest is compared with: two to three steps old.
        (2, [0, 0, 0, 0, 2, 2, 4]),
    ],
)
def test_a_snapshot_is_between_one_and_two_of_its_intervals_old(every: int, steps_before: list[int]):
    method = find("grpo").derive(references={"old": Snapshot(every=every)}, regularize=ReferenceKL(reference="old"))
    made = table_learner(method, lr=0.1, steps=len(steps_before), warmup=0, passes=1, updates_per_step=1)
    past = []
    for step, wanted in enumerate(steps_before, 1):
        past.append(made.policy.frozen_copy())
        made.step(step)
        rows = made.last
        with torch.no_grad():
            far = [(rows.sampled * (old.evaluate(rows).logp - rows.reference["old"].logp)).abs().max().item() for old in past]
        assert far[wanted] < 1e-5, f"step {step} is compared with another policy than that after {wanted} steps: {far}"
        assert all(distance > 1e-3 for number, distance in enumerate(far) if number != wanted), far


def test_a_checkpoint_from_before_references_were_parts_is_read():
    method = find("grpo").derive(references={"old": Snapshot()}, regularize=(ReferenceKL(reference="old"), ReferenceKL()))
    settings = {"lr": 0.1, "steps": 4, "warmup": 0, "passes": 1, "updates_per_step": 1}
    made, again = table_learner(method, **settings), table_learner(method, **settings)
    for step in (1, 2, 3):
        made.step(step)
    state = made.state()
    kept = state.pop("references")
    assert kept["start"] == [{}], "the start is what the run began with, which is kept beside the checkpoints"
    state["sight"] = {"snapshots": {"old": kept["old"]}, "start": {}}  # the form of the first checkpoints
    again.policy.load_weights(made.policy.weights())
    again.load_state(state)
    made.step(4)
    again.step(4)
    assert made.last is not None and again.last is not None
    for name in ("old", "start"):
        assert again.last.reference[name].logp.equal(made.last.reference[name].logp), name


def test_a_start_that_was_renewed_is_in_the_checkpoint():
    settings = {"lr": 0.1, "steps": 4, "warmup": 0, "passes": 1, "updates_per_step": 1}
    made, again = table_learner(find("grpo"), **settings), table_learner(find("grpo"), **settings)
    made.step(1)
    part = reference_parts(made.method)["start"]
    made.references.kept["start"] = part.renew(made.references.kept["start"], made.policy)
    again.load_state(made.state())
    renewed, loaded = made.references.start, again.references.start
    assert renewed is not None and loaded is not None and loaded is not again.references.first
    for name, tensor in renewed.weights().items():
        assert loaded.weights()[name].equal(tensor)
    assert any(not tensor.equal(again.references.first.weights()[name]) for name, tensor in renewed.weights().items())


@dataclass(frozen=True)
class Careless(Reference):
    """Returns what is no tuple of policies, where it is told to."""

    hook: str = "begin"

    def begin(self, policy, start):
        return policy if self.hook == "begin" else (policy.frozen_copy(),)

    def due(self, step: int) -> bool:
        return True

    def renew(self, kept, policy):
        return None


@pytest.mark.parametrize("hook", ["begin", "renew"])
def test_a_reference_that_keeps_no_policies_is_blamed_by_name(hook):
    method = find("grpo").derive(references={"mine": Careless(hook)}, regularize=ReferenceKL(reference="mine"))
    says = rf"references\.mine \(Careless\) returned .* it must return a tuple of policies from its {hook}"
    with pytest.raises(MethodError, match=says):
        table_learner(method, lr=0.1, steps=2, warmup=0).step(1)


def test_a_reference_that_nobody_named_is_asked_for():
    with pytest.raises(MethodError, match=r"regularize\.0 needs 'reference\.ema\.logp'.*--set references\.ema=Snapshot"):
        table_learner(find("grpo").with_knobs({"regularize.reference": "ema"}))


OLD_RUN = Path(__file__).parents[1] / "fixtures" / "run-remix"
"""A run of ReMix made when a snapshot was two copies and nothing else; it was stopped after its second step of four."""


def test_an_old_run_of_remix_goes_on_with_the_older_of_its_two_copies(tmp_path, monkeypatch):
    folder = Path(shutil.copytree(OLD_RUN, tmp_path / "old"))
    saved = load_file(folder / "checkpoints" / "step-000002" / "learner.safetensors")
    compared, loaded = References.compared, []

    def watched(self, method, name):
        if name == "previous" and not loaded:
            loaded.append({key: tensor.clone() for key, tensor in compared(self, method, name).weights().items()})
        return compared(self, method, name)

    monkeypatch.setattr(References, "compared", watched)
    run = up.resume(folder)
    newest = "learner/references/previous/1/"  # a copy was taken before the third step: what was the newest is now the older
    assert loaded and all(tensor.equal(saved[newest + key]) for key, tensor in loaded[0].items())
    assert not all(tensor.equal(saved[newest.replace("1", "0") + key]) for key, tensor in loaded[0].items())
    pinned = json.loads(OLD_RUN.with_suffix(".json").read_text())
    if pinned["build"] == build():  # elsewhere another token may be drawn
        assert fingerprint(load_file(run.folder.latest() / "model.safetensors")) == pinned["weights"]


def of_pool(**fields):
    return find("grpo").derive(references={"old": Snapshot(**fields)}, regularize=ReferenceKL(reference="old"))


TABLE = {"lr": 0.1, "warmup": 0, "passes": 1, "updates_per_step": 1}


def ages(method, steps: int) -> list[int]:
    """After how many steps each step's reference was the policy."""
    made, past, found = table_learner(method, steps=steps, **TABLE), [], []
    for step in range(1, steps + 1):
        past.append(made.policy.frozen_copy().weights())
        made.step(step)
        shown = made.references.compared(method, "old").weights()
        found.append(next(n for n, old in enumerate(past) if all(shown[key].equal(old[key]) for key in old)))
    return found


def test_a_pool_shows_one_of_its_copies_in_each_step_and_holds_no_more_than_it_keeps():
    shown = ages(of_pool(age="newest", keep=3, choose="random"), 14)
    behind = [step - age for step, age in enumerate(shown)]
    assert set(behind) == {0, 1, 2}, "each of the three newest copies has its turn, and none older"
    assert ages(of_pool(age="newest", keep=3), 5) == ages(of_pool(age="newest"), 5) == [0, 1, 2, 3, 4]
    assert ages(of_pool(keep=3), 5) == ages(of_pool(), 5) == [0, 0, 1, 2, 3]
    older = [step - age for step, age in enumerate(ages(of_pool(keep=2, choose="random"), 14))]
    assert set(older[2:]) == {1, 2}, "the copy taken last is the policy itself, and is not among those drawn from"


def test_which_copy_is_drawn_depends_on_seed_and_step_and_survives_a_stop():
    method = of_pool(age="newest", keep=4, choose="random")
    made, again = (table_learner(method, steps=8, **TABLE) for _ in range(2))
    for step in range(1, 6):
        made.step(step)
    again.policy.load_weights(made.policy.frozen_copy().weights())
    again.load_state(copy.deepcopy(made.state()))
    assert len(again.references.kept["old"]) == len(made.references.kept["old"]) == 4
    for step in (6, 7, 8):
        for learner in (made, again):
            learner.step(step)
        assert made.last is not None and again.last is not None
        assert again.last.reference["old"].logp.equal(made.last.reference["old"].logp)
        assert all(tensor.equal(made.policy.weights()[key]) for key, tensor in again.policy.weights().items())


def test_a_pool_that_is_not_full_yet_is_loaded_as_it_was():
    method = of_pool(age="newest", keep=5)
    made, again = (table_learner(method, steps=8, **TABLE) for _ in range(2))
    made.step(1)
    made.step(2)
    again.step(1)
    again.step(2)
    again.step(3)  # it has more copies than the state it is given
    again.load_state(made.state())
    assert len(made.references.kept["old"]) == len(again.references.kept["old"]) == 2


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"every": 0}, r"Snapshot\.every is 0"),
        ({"keep": 0}, r"Snapshot\.keep is 0; it is a number of copies, at least 1"),
    ],
)
def test_a_snapshot_that_cannot_be_is_refused(fields, says):
    with pytest.raises(MethodError, match=says):
        Snapshot(**fields)
