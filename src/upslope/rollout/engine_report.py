"""What engines say of a step's answers beside them: how many drafts were right, how far what was recorded is from the policy."""

from __future__ import annotations

from upslope.plain_data import JsonDict
from upslope.rollout.decode.speculation import DraftSum, drafts_of
from upslope.rollout.engine_gap import mean_of
from upslope.types import Engine, Metrics

NAMES = ("drafts", "engine")
"""Under which it is told beside rows."""


def told_since(engine: Engine, before: DraftSum) -> JsonDict:
    """What an engine has to say of its calls since it had drafted so much: plain data, for whoever asked for the rows."""
    found = metrics_of(engine)
    return drafts_of(engine).since(before).table() | ({"engine": found} if found else {})


def approximates(engine: Engine) -> bool:
    """Whether an engine samples in another precision than the policy learns in."""
    return getattr(engine, "in_eight_bits", False)


def metrics_of(engine: Engine) -> Metrics:
    """What an engine has to say of its last call, ours of all since it was asked; not all engines do."""
    told = getattr(engine, "metrics", None)
    return {} if told is None else told()


class EngineReport:
    """Of the answers that were taken since somebody asked, wherever they were sampled."""

    def __init__(self) -> None:
        self._drafts, self._told = DraftSum(), list[Metrics]()

    def heard(self, told: JsonDict) -> None:
        """What was told beside rows (`told_since`)."""
        self._drafts = self._drafts.with_those_of(DraftSum(*told.get("drafts", ())))
        self._told += [told["engine"]] if "engine" in told else []

    def metrics(self, engine: Engine) -> Metrics:
        """All of it, which is forgotten then.

        Args:
            engine: asked for its last call where nothing was told beside rows.
        """
        found = (mean_of(self._told) or metrics_of(engine)) | self._drafts.metrics()
        self._drafts, self._told = DraftSum(), []
        return found
