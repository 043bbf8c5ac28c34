"""What ``import upslope as up`` gives."""

from upslope.api.comparing import compare, plan_comparison
from upslope.api.finding import list_methods, method
from upslope.api.training import estimate, load, resume, train
from upslope.datasets.api import describe, load_data, make_data
from upslope.methods import compose
from upslope.tasks import list_tasks
from upslope.tasks.gym_make import reset_free

__all__ = [
    "compare", "compose", "describe", "estimate", "list_methods", "list_tasks", "load", "load_data", "make_data", "method",
    "plan_comparison", "reset_free", "resume", "train",
]  # fmt: skip
