"""The token trace: ratios, advantages, weights and clips of each token in a step's updates, kept for people who want to look.

It changes nothing of what is learned. `rollout_record` makes plain data of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from upslope.objective import estimator
from upslope.objective.base import Notes
from upslope.runtime.team import Team
from upslope.types import Method, Trajectories

UPDATE_COLUMNS = ("ratio", "advantages", "weight", "clipped")
"""What only the update knows, and a row that it left out therefore has not."""


class TokenTrace:
    """What the updates of a step showed of its rows; later updates of a row take the place of earlier ones."""

    def __init__(self, rows: Trajectories):
        self.rows = rows.replace(label={**rows.label, "row": torch.arange(rows.rows, device=rows.sampled.device)})
        """The rows, numbered: a slice says by that which ones it holds."""
        self.columns = {name: torch.full_like(rows.sampled, torch.nan) for name in UPDATE_COLUMNS}
        self.noted: dict[str, Tensor] = {}
        """What the surrogate noted of whole rows ``[N]``, such as the margin of a contest; NaN where it noted nothing."""
        self.seen = torch.zeros(rows.rows, dtype=torch.bool, device=rows.sampled.device)
        """Rows of the update under way that this process has looked at."""
        if rows.advantage is not None:  # an update leaves rows out that have nothing to say; that is known of them
            self.columns["advantages"].copy_(rows.advantage)

    def add(self, method: Method, piece: Trajectories, notes: Notes) -> None:
        """A slice of an update, with the current policy's columns and the notes of the surrogate."""
        assert piece.current is not None and piece.advantage is not None
        row, none = piece.label["row"], torch.zeros_like(piece.sampled)
        self.seen[row] = True
        found = {
            "ratio": (piece.current.logp.detach() - piece.behavior.logp).exp(),
            "advantages": piece.advantage,
            "weight": estimator.decision_weight(method, piece),
            "clipped": notes.get("clipped_high", none).float() - notes.get("clipped_low", none).float(),
        }
        for name, column in found.items():
            self.columns[name][row] = torch.where(piece.sampled > 0, column.to(self.columns[name].dtype), torch.nan)
        for name, note in notes.items():
            if note.dim() == 1 and note.is_floating_point():
                kept = self.noted.setdefault(name, torch.full_like(self.rows.sampled[:, 0], torch.nan))
                kept[row] = note.detach().to(kept.dtype)

    def restart(self) -> None:
        """The update under way begins again and will look at all its rows anew: nothing is kept of those it has seen."""
        for column in (*self.columns.values(), *self.noted.values()):
            column[self.seen] = torch.nan
        self.seen.zero_()

    def share(self, team: Team) -> None:
        """An update is over: what others of the team saw of its rows is seen here too."""
        if team.size > 1:
            names = dict.fromkeys(name for each in team.gathered({"names": list(self.noted)}) for name in each["names"])
            for name in names:
                self.noted.setdefault(name, torch.full_like(self.rows.sampled[:, 0], torch.nan))
            anywhere = team.sum(self.seen.float()) > 0
            for columns in (self.columns, self.noted):
                for name, column in columns.items():
                    shape = (-1, *[1] * (column.dim() - 1))
                    total = team.sum(torch.where(self.seen.view(shape), column, 0.0))
                    columns[name] = torch.where(anywhere.view(shape), total, column)
        self.seen.zero_()


@dataclass(frozen=True)
class TracedStep:
    """A step as it was learned from."""

    sampled: Trajectories
    """All that was sampled, filtered out or not."""
    learned: Trajectories
    """What passed the filters and what data parts added."""
    columns: dict[str, Tensor]
    """Of the update, a row for each row of `learned`."""
    noted: dict[str, Tensor] = field(default_factory=dict)
    """What the surrogate noted of whole rows ``[N]``, a value for each row of `learned`, NaN where there is none."""
