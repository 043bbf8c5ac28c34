"""With which policy a step is compared: the age of a snapshot."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from tables import table_learner

from upslope.errors import MethodError
from upslope.learners.references import reference_parts
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
