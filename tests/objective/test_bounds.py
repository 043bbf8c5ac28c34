"""Where a field may be: its bound is taken or refused as its interval says, and what lies beyond is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
from part_classes import part_classes

from upslope.errors import MethodError

# Part, field, interval, and other fields that must be given for the bound to be reached.
INTERVALS: list[tuple[str, str, str, dict[str, Any]]] = [
    ("AdvantageWeight", "temperature", "(0, inf)", {}),
    ("AnchoredBaseline", "anchor", "[0, inf)", {}),
    ("Attribution", "limit", "(0, inf)", {}),
    ("BalancedClip", "high_limit", "[1.2, inf)", {}),
    ("BalancedClip", "high_start", "[1, 3]", {}),
    ("BalancedClip", "high_step", "(0, inf)", {}),
    ("BalancedClip", "low_limit", "[0.6, 1]", {}),
    ("BalancedClip", "low_start", "[0, 0.9]", {}),
    ("BalancedClip", "low_step", "(0, inf)", {}),
    ("BalancedClip", "target", "[0, 1]", {}),
    ("BetaNormalised", "alpha", "[1, inf)", {}),
    ("BetaNormalised", "beta", "[1, inf)", {}),
    ("BetaNormalised", "highest", "(0, inf)", {}),
    ("BetaNormalised", "sharpest", "[1, inf)", {}),
    ("Blinded", "keep_first", "[0, inf)", {}),
    ("Blinded", "keep_last", "[0, inf)", {}),
    ("Blinded", "patch", "[1, inf)", {}),
    ("Blinded", "share", "[0, 1]", {}),
    ("Blinded", "token", "[0, inf)", {}),
    ("BoundedRatio", "low", "[0, inf)", {}),
    ("BoundedRatio", "temperature", "(0, inf)", {}),
    ("BundleRisk", "high", "(0.2, 1]", {"low": 0.2, "weight": 0.0}),
    ("BundleRisk", "low", "[0, 0.8)", {"high": 0.8, "weight": 0.0}),
    ("BundleRisk", "questions", "[1, inf)", {}),
    ("BundleRisk", "weight", "[0, inf)", {}),
    ("ConstantSum", "divisor", "(0, inf)", {}),
    ("DifficultyWeight", "high", "[1, inf)", {}),
    ("DifficultyWeight", "low", "[0, 1]", {}),
    ("DownSampling", "rows_start", "(0, 1]", {}),
    ("DownSampling", "until", "(0, 1]", {}),
    ("EntropyAdaptiveClip", "quantile", "[0, 1]", {}),
    ("EntropyAdaptiveClip", "redistribute", "[0, 1]", {}),
    ("EntropyAdaptiveClip", "widen", "[0, inf)", {}),
    ("EntropyCutoff", "threshold", "(0, inf)", {}),
    ("GroupMatching", "temperature", "(0, inf)", {}),
    ("GroupMatching", "weight", "[0, inf)", {}),
    ("HingeKL", "entropy_floor", "[0, inf)", {}),
    ("HingeKL", "smoothing", "[0, 1)", {}),
    ("HingeKL", "weight", "[0, inf)", {}),
    ("LabelFromRatio", "scale", "(0, inf)", {}),
    ("MaskedLikelihood", "cap", "(0, inf)", {}),
    ("MaskedLikelihood", "far_high", "[0.2, inf)", {}),
    ("MaskedLikelihood", "far_low", "[0.2, inf)", {}),
    ("ObjectiveChange", "lr", "(0, inf)", {}),
    ("OverlongPenalty", "buffer", "(0, 1]", {}),
    ("PessimisticValue", "clip", "(0, inf)", {}),
    ("PessimisticValue", "delta", "(0, inf)", {}),
    ("PessimisticValue", "outputs", "[1, inf)", {}),
    ("PessimisticValue", "softness", "(0, inf)", {}),
    ("PhasedThreshold", "high", "[0.1, inf)", {}),
    ("PhasedThreshold", "window", "[1, inf)", {}),
    ("PreviousStep", "dead_zone", "[0, inf)", {}),
    ("PreviousStep", "gate", "[0, inf)", {}),
    ("PreviousStep", "lam", "[0, inf)", {}),
    ("PreviousStep", "limit", "[0, inf)", {}),
    ("PreviousStep", "window", "[1, inf)", {}),
    ("ProbabilityClip", "most", "[1, inf)", {}),
    ("Reincarnation", "drop", "[0, inf)", {}),
    ("Reincarnation", "every", "[1, inf)", {}),
    ("Reincarnation", "floor", "[0, 1]", {}),
    ("Reincarnation", "hold", "[0, inf)", {}),
    ("Reincarnation", "until", "[0, inf)", {}),
    ("Snapshot", "every", "[1, inf)", {}),
    ("SuccessTracker", "half", "(0, inf)", {}),
    ("SuccessTracker", "high", "[0.875, 1]", {}),
    ("SuccessTracker", "low", "[0, 0.96]", {}),
    ("SuccessTracker", "offline", "[0, inf)", {}),
    ("SuccessTracker", "prior", "(0, inf)", {}),
    ("ThisWindow", "skip", "[0, inf)", {}),
    ("TokenLevelBaseline", "limit", "(0, inf)", {}),
    ("TrustToken", "fall", "[0, inf)", {}),
    ("TrustToken", "quantile", "(0, 1]", {}),
    ("TrustToken", "rise", "(0, inf)", {}),
    ("TrustToken", "shift", "(0, inf)", {}),
    ("VirtualSamples", "virtual", "[0, inf)", {}),
]

NAMES = [f"{part}.{field}" for part, field, *_ in INTERVALS]


def made(part: str, field: str, value: float, others: dict[str, Any]) -> object:
    kind = part_classes()[part]
    whole = kind.__dataclass_fields__[field].type == "int"
    return kind(**{field: round(value) if whole else float(value)}, **others)


@pytest.mark.parametrize(("part", "field", "interval", "others"), INTERVALS, ids=NAMES)
def test_a_bound_is_taken_or_refused_as_the_interval_says(part: str, field: str, interval: str, others: dict[str, Any]):
    low, high = (float(each) for each in interval[1:-1].split(","))
    step = 1 if part_classes()[part].__dataclass_fields__[field].type == "int" else 1e-3
    ends = [(low, interval[0] == "[", -step)] + ([(high, interval[-1] == "]", step)] if math.isfinite(high) else [])
    for bound, closed, outwards in ends:
        assert made(part, field, bound - outwards, others)
        with pytest.raises(MethodError):
            made(part, field, bound + outwards, others)
        if closed:
            assert made(part, field, bound, others)
        else:
            with pytest.raises(MethodError):
                made(part, field, bound, others)
