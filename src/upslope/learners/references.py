"""References: the policies that a policy is compared with, kept over the steps and renewed when their parts say so."""

from __future__ import annotations

from upslope.learners.parts import whole_weights
from upslope.objective.base import Controller, Reference, State
from upslope.objective.estimator import stateful
from upslope.objective.references import Start
from upslope.objective.references.speaking import speakers
from upslope.runtime.seeding import uniforms
from upslope.types import Method, Policy, call, wrong

START = "start"
"""The reference that every method may compare with and none needs to name."""


def reference_parts(method: Method) -> dict[str, Reference]:
    """The references of a method by name, the start among them."""
    return {START: Start(), **dict(method.references)}


def compares_with_start(method: Method) -> bool:
    """Whether a copy of the first policy must be kept for this method."""
    speaks = any(START in names for names in speakers(method).values())
    return speaks or any(need.startswith(f"reference.{START}.") for need in method.needs())


class References:
    """Copies of the policy by the name of their reference.

    Args:
        start: the policy as the run began, for methods or measurements that compare with it.
        seed: of the run, for references that draw one of their copies.
    """

    def __init__(self, method: Method, policy: Policy, start: Policy | None, seed: int = 0):
        self.policy, self.first, self.seed = policy, start, seed
        self.step, self._drawn = 0, dict[str, float]()
        wanted = start is not None or compares_with_start(method)
        parts = {name: part for name, part in reference_parts(method).items() if name != START or wanted}
        self.kept = {
            name: _still(part, _copies(method, part, "begin", call(method, part, part.begin, policy, start)))
            for name, part in parts.items()
        }
        self._parts = parts

    @property
    def start(self) -> Policy | None:
        """The policy that counts as the start now, if it is kept."""
        return self.kept[START][0] if START in self.kept else None

    def compared(self, method: Method, name: str) -> Policy:
        """Whose log-probabilities are this reference's."""
        part = reference_parts(method)[name]
        if name not in self._drawn:
            self._drawn[name] = float(uniforms((1,), self.seed, "reference", name, self.step))
        shown = _copies(method, part, "shown", call(method, part, part.shown, self.kept.get(name, ()), self._drawn[name]))
        return call(method, part, part.compared, shown, self.policy)

    def renew(self, method: Method, states: dict[str, State], step: int, progress: float) -> None:
        """Renews the copies that are due before this step, by themselves or because a controller asks."""
        self.step, self._drawn = step, {}
        parts = reference_parts(method)
        due = {name for name, part in parts.items() if call(method, part, part.due, step)}
        for path, controller in stateful(method).items():
            if isinstance(controller, Controller):
                due |= set(call(method, controller, controller.snapshots, states[path], progress))
        for name in due & self.kept.keys():  # a start that nobody looks at is not kept
            part = parts[name]
            renewed = _copies(method, part, "renew", call(method, part, part.renew, self.kept[name], self.policy))
            self.kept[name] = _still(part, renewed)

    def state(self) -> State:
        """The weights of all copies but the first policy itself, which the run keeps beside its checkpoints."""
        return {name: [{} if copy is self.first else whole_weights(copy) for copy in kept] for name, kept in self.kept.items()}

    def load_state(self, state: State) -> None:
        for name, saved in state.items():
            own = self.kept[name]
            # A pool fills as the run goes on, so there may be more copies than a run begins with.
            copies = [own[number] if number < len(own) else self.policy.frozen_copy() for number in range(len(saved))]
            for number, weights in enumerate(saved):
                if weights:
                    if copies[number] is self.first:
                        copies[number] = self.policy.frozen_copy()
                    copies[number].load_weights(weights)
            self.kept[name] = _still(self._parts[name], tuple(copies))


def _copies(method: Method, part: Reference, hook: str, found: object) -> tuple[Policy, ...]:
    """What a reference keeps, if it is a tuple of policies."""
    if not (isinstance(found, tuple) and all(hasattr(copy, "evaluate") for copy in found)):
        raise wrong(method, part, found, f"a tuple of policies from its {hook}()")
    return found


def _still(part: Reference, copies: tuple[Policy, ...]) -> tuple[Policy, ...]:
    """The copies; those that never move take as little memory as their policy can do with."""
    for copy in () if part.moves_copies else copies:
        if hold := getattr(copy, "hold_still", None):
            hold()
    return copies


def of_older_checkpoint(state: State) -> State:
    """The state of a checkpoint from before references were parts: two copies of each snapshot, and a start if it was renewed."""
    return {**state["snapshots"], **({START: [state["start"]]} if state["start"] else {})}
