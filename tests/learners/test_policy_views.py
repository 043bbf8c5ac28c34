"""What a learner asks of policies before a step and before an update, and how far the policy is from its start."""

from __future__ import annotations

import math

import pytest
import torch
from part_values import steps

from upslope.learners.policy_views import WATCHED_ROWS, PolicyViews
from upslope.learners.references import References
from upslope.methods import find
from upslope.types import Source, Trajectories, View


class Moved:
    """A policy whose log-probabilities are the sampler's and a given step more; it notes what it was asked for."""

    pads = True
    independent_decisions = False

    def __init__(self, by: float):
        self.by, self.asked = by, list[tuple[int, tuple[str, ...]]]()

    def evaluate(self, rows: Trajectories, needs: frozenset[str] = frozenset()) -> View:
        self.asked.append((rows.rows, tuple(sorted(needs))))
        columns = {name: torch.full_like(rows.sampled, 0.5) for name in needs}
        return View.of({"logp": rows.behavior.logp + self.by, **columns})

    def slice_tokens(self, rows: Trajectories) -> torch.Tensor:
        return torch.full((rows.rows,), rows.sampled.shape[1])

    def token_budget(self) -> int:
        return 40

    def frozen_copy(self) -> Moved:
        return Moved(self.by)


def rows(**changes) -> Trajectories:
    return steps()[0][0].replace(**{"current": None, "proximal": None, "reference": {}, **changes})


def views(method: str, by: float = 0.1, start: float | None = 0.3, watch: bool = True) -> PolicyViews:
    policy = Moved(by)
    return PolicyViews(policy, References(find(method), policy, None if start is None else Moved(start)), watch)


def k3(step: float) -> float:
    """Mean of exp(q - p) - 1 - (q - p) where the start q is everywhere this step from the sampler p."""
    return math.exp(step) - 1 - step


def test_the_kl_to_the_start_is_measured_on_request_or_where_it_is_known():
    grpo = find("grpo")
    known = rows(reference={"start": View(rows().behavior.logp + 0.2)})
    assert views("grpo").kl_to_start(known, grpo)["kl_start"] == pytest.approx(k3(0.2))
    assert views("grpo").kl_to_start(rows(), grpo)["kl_start"] == pytest.approx(k3(0.3))
    assert views("grpo", watch=False).kl_to_start(rows(), grpo) == {}
    assert views("dapo", start=None).kl_to_start(rows(), grpo) == {}


def test_only_fresh_rows_say_how_far_the_policy_is():
    logp = rows().behavior.logp.clone()
    logp[6:] += 5.0  # replayed rows, far from anything
    source = torch.where(torch.arange(12) < 6, int(Source.FRESH), int(Source.REPLAYED))
    known = rows(reference={"start": View(logp + 0.2)}, label={"source": source})
    assert views("grpo").kl_to_start(known, find("grpo"))["kl_start"] == pytest.approx(k3(0.2))


def test_many_rows_are_watched_in_part():
    few = rows()
    many = few.take_rows(torch.arange(12).repeat(8))
    seen = views("dapo")
    seen.kl_to_start(many, find("dapo"))
    assert many.rows == 96 and sum(count for count, _ in seen.references.start.asked) == WATCHED_ROWS == 64
    seen = views("dapo")
    seen.kl_to_start(few, find("dapo"))
    assert sum(count for count, _ in seen.references.start.asked) == 12


def test_columns_come_slice_by_slice_and_only_for_the_chosen():
    seen, batch = views("dapo"), rows()
    found = seen.columns(find("dapo"), seen.policy, batch, frozenset({"entropy"}), torch.tensor([0, 3, 4, 5, 6, 7, 8]))
    assert seen.policy.asked == [(5, ("entropy",)), (2, ("entropy",))], "five rows of eight positions fill a budget of 40"
    left_out = torch.tensor([1, 2, 9, 10, 11])
    assert not found.logp[left_out].any() and not found.entropy[left_out].any()
    assert torch.equal(found.logp[3], batch.behavior.logp[3] + 0.1) and (found.entropy[[0, 8]] == 0.5).all()


@pytest.mark.parametrize(("method", "moves", "asked"), [("dapo", False, 0), ("dapo", True, 12), ("high-entropy", False, 12)])
def test_one_pass_before_the_step_where_somebody_needs_it(method: str, moves: bool, asked: int):
    seen = views(method)
    found = seen.before_step(find(method), rows(), moves)
    assert sum(count for count, _ in seen.policy.asked) == asked
    assert (found.proximal is None) == (asked == 0)


def test_rows_without_signal_are_not_looked_at():
    reward = torch.zeros(12, dtype=torch.float64)
    reward[:2] = 1.0  # only the first group of four has something to say
    seen = views("dapo")
    seen.before_step(find("dapo"), rows(reward=reward, components={"task": reward}), True)
    assert sum(count for count, _ in seen.policy.asked) == 4


def test_what_is_read_before_an_update_is_the_proximal_policy_only_in_the_first():
    capo = find("clip-cov")
    early = rows(proximal=View(rows().behavior.logp))
    seen = views("clip-cov")
    assert seen.before_update(capo, early).current is early.proximal and seen.policy.asked == []
    later = seen.before_update(capo, early.replace(draw=1)).current
    assert later is not None and torch.equal(later.logp, early.behavior.logp + 0.1)
    assert seen.before_update(capo, rows()).current is not None
    assert seen.before_update(find("grpo"), early).current is None


def test_of_rows_nobody_sampled_every_eighth_is_watched_as_it_takes_two_passes():
    given = rows().take_rows(torch.arange(12).repeat(2))
    given = given.replace(label={"source": torch.full((24,), int(Source.DEMONSTRATED))})
    seen = views("sft")
    assert seen.kl_to_start(given, find("sft"))["kl_start"] == pytest.approx(k3(0.2))  # the policy is 0.1 from what the rows say
    assert [sum(count for count, _ in each.asked) for each in (seen.policy, seen.references.start)] == [3, 3]
