"""Methods: every `Method` here with a public name of its own joins ``upslope methods``."""

from acme_rl.parts import SoftenNegative
from upslope.methods import grpo
from upslope.types import Paper

acme_grpo = grpo.derive(
    name="acme-grpo",
    paper=Paper("A note of Acme's", year=2026),
    differs="bad answers push away with half their force",
    formula="L as grpo, with A < 0 replaced by A / 2",
    shape=SoftenNegative(),
)
