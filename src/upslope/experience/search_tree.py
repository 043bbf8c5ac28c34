"""Which of many points is nearest, exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from upslope.errors import UserError

LEAF = 24
"""Points that are compared one by one, once the tree has come down to them."""


class SearchTree:
    """A KD-tree over points ``[M, K]``. Nobody changes it, so copies of what holds it share it."""

    def __init__(self, points: Tensor) -> None:
        try:
            from scipy.spatial import cKDTree
        except ImportError as missing:
            raise UserError("neighbours are looked for with scipy, which is missing: pip install 'upslope[control]'.") from missing
        numbers = points.double().numpy()
        # Split at the middle of a box, not at the median: quicker to ask where points lie along episodes.
        order = cKDTree(numbers, leafsize=LEAF, balanced_tree=False).indices
        # Again with the points of a leaf side by side in memory: among a million, a question then takes half the time.
        self.tree: Any = cKDTree(np.ascontiguousarray(numbers[order]), leafsize=LEAF, balanced_tree=False)
        self.order = torch.from_numpy(order)

    def __call__(self, asked: Tensor) -> Tensor:
        return self.order[torch.from_numpy(self.tree.query(asked.detach().double().cpu().numpy())[1])]

    def __deepcopy__(self, memo: dict[int, Any]) -> SearchTree:
        return self
