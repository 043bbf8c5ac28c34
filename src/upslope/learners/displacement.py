"""Whether a run on pairs lowers the likelihood of what was chosen: a loss of differences does not mind."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from upslope.errors import Remark
from upslope.plain_data import JsonDict
from upslope.runtime.run_folder import RunFolder
from upslope.types import Method

LOOKED_AT = 5
"""Steps at the beginning, and up to now, that are compared: the pairs of a single step may be hard by chance."""
NATS, SHARE = 1.0, 0.1
"""A fall is clear if it is larger than both: so many nats, and that share of where it began."""
CURES = ("opa-dpo", "sppo")
"""Methods whose chosen answers ended likelier than DPO's in docs/claims/displacement.md; IPO's and SimPO's did not."""


class DisplacementWatch:
    """Says once that the log-likelihood of chosen answers fell clearly while the loss did too.

    Nothing is kept from step to step: it reads what the run has logged, so a run that was resumed says the same. It looks after
    steps 10, 15, 20, 30, 40, 60, ...: reading the log costs little however long the run is.
    """

    def __init__(self, method: Method):
        self.method = method
        self.watches = method.rollout is not None and not method.rollout.samples  # fresh samples are other answers every step

    def say(self, step: int, folder: RunFolder) -> None:
        """A remark after a step, if there is something to say and it was not said before."""
        if self.watches and step in looks(step):
            told = self.remark([record for record in folder.read("metrics.jsonl") if record.get("kind") == "step"][:step])
            if told:
                warnings.warn(Remark(told), stacklevel=2)

    def remark(self, steps: Sequence[JsonDict]) -> str:
        """What to say after these steps; nothing if the chosen answers are about as likely as they were, or it was said before."""
        if any(displaced(steps[:look]) for look in looks(len(steps))[:-1]) or not displaced(steps):
            return ""
        first, now = (mean(part, "logp_chosen") for part in (steps[:LOOKED_AT], steps[-LOOKED_AT:]))
        fell = f"logp_chosen fell from {first:.1f} to {now:.1f} while the loss fell too"
        why = (
            "the chosen answers themselves become less likely, and accuracy may fall with them. Only differences count in this loss"
        )
        return f"{fell}: {why}. Try {self._cures()}."

    def _cures(self) -> str:
        beta = getattr(self.method.surrogate, "beta", None)
        nearer = [] if beta is None else [f"a larger surrogate.beta (it is {beta:g})"]
        ways = ["an sft term on the chosen answers (docs/preferences.md)", *nearer, *(n for n in CURES if n != self.method.name)]
        return ", ".join(ways[:-1]) + f" or {ways[-1]}"


def looks(steps: int) -> list[int]:
    """The steps up to this one after which the log is looked at."""
    found = (base << doubling for doubling in range(steps.bit_length()) for base in (10, 15))
    return [step for step in found if step <= steps]


def displaced(steps: Sequence[JsonDict]) -> bool:
    """Whether each of the last of these steps had chosen answers clearly less likely than the first, on average, and less loss."""
    first, last = steps[:LOOKED_AT], steps[-LOOKED_AT:]
    if len(steps) < 2 * LOOKED_AT or not all("logp_chosen" in record and "loss" in record for record in (*first, *last)):
        return False
    began = mean(first, "logp_chosen")
    clearly_below = began - max(NATS, SHARE * abs(began))
    return all(record["logp_chosen"] < clearly_below for record in last) and mean(last, "loss") < mean(first, "loss")


def mean(steps: Sequence[JsonDict], name: str) -> float:
    """Of a metric over these steps."""
    return sum(float(record[name]) for record in steps) / len(steps)
