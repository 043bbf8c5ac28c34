"""Stored images on the GPU that learns: each travels there once, when it was seen, and updates ask for it by its place.

An update of 32 rows of four frames looks at 256 of them, 1.8 MB. To gather these on the CPU and to send them takes longer than to
learn from them; their places are 2 KB.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from upslope.experience.episodes import Episodes
from upslope.experience.store import Lane, ReplayStore
from upslope.policies.control.bound_networks import ExperienceInputs

SHARE = 0.25
"""Of a GPU's memory that stored images may take; where they would take more, they stay with the CPU."""
SENT_AT_ONCE = 4096
"""Frames: a resumed run has many of them to send."""


class DeviceFrames:
    """What the lanes of a store have seen, held on another device too.

    A lane has a ring of ``room`` frames there; the frame of a row lies where the row's number, which stays, says. Room for all that
    the store is to remember is taken at once.
    """

    def __init__(self, store: ReplayStore, device: torch.device):
        self.store, self.device = store, device
        self.room = room_for(store.lanes[0])
        self._sent = [0] * len(store.lanes)
        """Rows of each lane that were sent, ever."""
        self.frames = self._empty()

    @staticmethod
    def where_they_fit(store: ReplayStore, device: torch.device) -> DeviceFrames | None:
        """On a GPU that has the memory for them; elsewhere none."""
        if device.type != "cuda":
            return None
        lane = store.lanes[0]
        wanted = len(store.lanes) * room_for(lane) * lane.columns.observation[0].nbytes
        if wanted > SHARE * torch.cuda.get_device_properties(device).total_memory:
            return None
        try:
            return DeviceFrames(store, device)
        except torch.OutOfMemoryError:  # others have the memory
            return None

    def _empty(self) -> Tensor:
        seen = self.store.lanes[0].columns.observation
        return torch.zeros((len(self.store.lanes) * self.room, *seen.shape[1:]), dtype=torch.uint8, device=self.device)

    def forget(self) -> None:
        """The store was filled anew: everything is sent again."""
        self._sent = [0] * len(self.store.lanes)

    def follow(self) -> bool:
        """Sends what was seen since the last time. True if frames lie elsewhere from now on."""
        needed = max(lane.rows - lane.oldest_row for lane in self.store.lanes)
        moved = needed > self.room
        if moved:  # more episodes than there was room for
            self.room = needed + needed // 8
            self.forget()
            del self.frames
            self.frames = self._empty()
        places: list[np.ndarray] = []
        frames: list[np.ndarray] = []
        for number, lane in enumerate(self.store.lanes):
            # The last row that was sent may have been dropped and written anew since: an episode that nobody acted in.
            fresh = np.arange(max(self._sent[number] - 1, lane.oldest_row), lane.rows)
            for some in np.split(fresh, range(SENT_AT_ONCE, len(fresh), SENT_AT_ONCE)):
                places.append(self._first(number) + some % self.room)
                frames.append(lane.columns.observation[lane.place(some)])
                if len(some) == SENT_AT_ONCE:
                    self._send(places, frames)
            self._sent[number] = lane.rows
        self._send(places, frames)
        return moved

    def _send(self, places: list[np.ndarray], frames: list[np.ndarray]) -> None:
        if not places:
            return
        where, what = (torch.from_numpy(np.concatenate(each)).to(self.device) for each in (places, frames))
        self.frames.index_copy_(0, where, what)
        places.clear()
        frames.clear()

    def _first(self, lane: int) -> int:
        return lane * self.room

    def lane(self, number: int) -> PlacedLane:
        """A lane to draw from that says where its frames lie."""
        return PlacedLane(self.store.lanes[number], self._first(number), self.room)

    def shown(self, inputs: ExperienceInputs) -> ExperienceInputs:
        """The images at the places that rows were drawn with."""
        return ExperienceInputs(
            self.frames[inputs.observation], self.frames[inputs.following], inputs.action_mask, inputs.following_mask
        )


def room_for(lane: Lane) -> int:
    """Frames of a lane: it keeps a row more for each episode, and how many those are nobody knows beforehand."""
    return lane.capacity + lane.capacity // 16 + 1 + lane.frames


class PlacedLane:
    """A lane whose observations are places ``[M]`` or ``[M, frames]`` in `DeviceFrames.frames`."""

    def __init__(self, lane: Lane, first: int, room: int):
        self._lane, self._place_of_first, self._room = lane, first, room

    @property
    def columns(self) -> Episodes:
        return self._lane.columns

    @property
    def decision_count(self) -> int:
        return self._lane.decision_count

    @property
    def first_row(self) -> int:
        return self._lane.first_row

    def decision_rows(self, numbers: np.ndarray) -> np.ndarray:
        return self._lane.decision_rows(numbers)

    def place(self, rows: np.ndarray) -> np.ndarray:
        return self._lane.place(rows)

    def observations(self, rows: np.ndarray) -> np.ndarray:
        return self._place_of_first + self._lane.frame_rows(rows) % self._room
