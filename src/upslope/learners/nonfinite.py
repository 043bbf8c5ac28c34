"""Non-finite gradients and weights: the rows they came from are kept, and a series of them ends the run.

One such update is skipped, which costs nothing but its rows: a single overflow in half precision is no reason to stop. A series is
a run that learns no more, however ordinary its table looks.
"""

from __future__ import annotations

import dataclasses
import json
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from upslope.errors import Remark, UserError
from upslope.learners.metrics import MetricSums
from upslope.learners.parts import in_parts, norms_of
from upslope.learners.policy_views import PolicyViews
from upslope.learners.updates.column_grads import as_leaf, column_grads
from upslope.objective import estimator
from upslope.runtime import torch_private
from upslope.runtime.team import Team
from upslope.types import UNCUT, Method, Policy, Trajectories, View

IN_A_ROW = 5
"""Skipped updates in a row after which the run ends."""
KEPT = 10
"""Files with such rows that a run's folder gets; where they come again and again, the first ones tell enough."""
SHOWN = 6
"""Rows or parameters that are named before the rest is only counted."""


class NonFinite(UserError):
    """Learning cannot go on: gradients have not been finite for a while, or the weights are not.

    Args:
        look: where one sees what happened, ``RUN`` in the place of the run's folder.
    """

    def __init__(self, what: str, cure: str, look: str = "'upslope check RUN' says what was not finite."):
        super().__init__(f"{what} {cure}")
        self.what, self.cure, self.look = what, cure, look

    def ended(self, run: Path, checkpoint: str) -> NonFinite:
        """The same, for whoever started the run in this folder."""
        from upslope.policies.adapter_files import holds_model

        if not checkpoint:  # it writes none
            return NonFinite(f"{self.what} The run has ended. {self.look.replace('RUN', str(run))}", self.cure)
        saved = run / "checkpoints" / checkpoint
        begin = f" (--model {saved} begins with those weights)" if holds_model(saved) else ""
        return NonFinite(
            f"{self.what} The run has ended; its checkpoint {checkpoint} is good{begin}. {self.look.replace('RUN', str(run))}",
            f"To resume it would end here again: {self.cure}",
        )


@dataclass(frozen=True)
class NonFiniteUpdate:
    """The rows of an update that came to nothing."""

    step: int
    columns: Mapping[str, Tensor]
    """Every column of the rows by its place, such as ``current.logp``; ``gradient.logp`` is the gradient of the loss in it."""
    parameters: tuple[str, ...]
    """Names of the parameters whose gradient, or value, is not finite or too large for a norm."""
    of: str
    """``gradient`` or ``weights``: what of the parameters is meant."""

    def save(self, folder: Path) -> Path | None:
        """Writes ``step-000012.safetensors``; nothing where there are `KEPT` already. A full disk is told and no reason to stop."""
        from safetensors.torch import save_file

        file = folder / f"step-{self.step:06d}.safetensors"
        if not file.exists() and len(list(folder.glob("step-*.safetensors"))) >= KEPT:
            return None
        tensors = {name: column.detach().cpu().contiguous().clone() for name, column in self.columns.items()}
        told = {"step": str(self.step), "of": self.of, "parameters": json.dumps(self.parameters)}
        draft = file.with_name(f".{file.name}.tmp")
        try:
            folder.mkdir(exist_ok=True)
            save_file(tensors, draft, told)
            draft.replace(file)
        except OSError as error:
            warnings.warn(Remark(f"the rows of step {self.step} could not be kept in {folder}: {error}."), stacklevel=2)
            return None
        return file


def nonfinite_update(
    method: Method, views: PolicyViews, policy: Policy, rows: Trajectories, needs: frozenset[str], step: int
) -> NonFiniteUpdate:
    """The rows of an update as its parts saw them, computed once more: the update itself keeps nothing of this."""
    parameters = tuple(nonfinite_parameters(policy, gradients=True, team=views.team))
    try:
        columns = _seen_again(method, views, policy, rows, needs)
    except RuntimeError as error:  # memory, mostly; the run can go on without it
        warnings.warn(Remark(f"the rows of step {step} are kept without what the policy makes of them: {error}"), stacklevel=2)
        columns = dict(_flat(rows))
    return NonFiniteUpdate(step, columns, parameters, "gradient")


def _seen_again(method: Method, views: PolicyViews, policy: Policy, rows: Trajectories, needs: frozenset[str]) -> dict[str, Tensor]:
    batch = estimator.begin_update(method, views.before_update(method, rows)).replace(current=None)
    view = views.columns(method, policy, batch, needs)
    grads = column_grads(method, batch, view.map(as_leaf), MetricSums())
    return dict(_flat(batch.replace(current=view))) | {f"gradient.{name}": grad for name, grad in grads.items()}


def broken_weights(policy: Policy, rows: Trajectories, step: int, team: Team) -> NonFiniteUpdate:
    """The rows of a step behind which the weights are not finite."""
    return NonFiniteUpdate(step, dict(_flat(rows)), tuple(nonfinite_parameters(policy, gradients=False, team=team)), "weights")


def nonfinite_parameters(policy: Policy, gradients: bool, team: Team) -> Iterator[str]:
    """Names of the parameters whose norm is not finite, or that of whose gradient is not."""
    names, found = _names(policy), dict[str, Tensor]()
    for group, parameters in policy.trainable().items():
        for number, parameter in enumerate(parameters):
            tensor = parameter.grad if gradients else parameter
            if tensor is not None:
                found[names.get(id(parameter), f"{group} {number}")] = tensor
    tensors = list(found.values())
    norms = norms_of(tensors, team) if in_parts(policy) else [norm_of([tensor]) for tensor in tensors]
    yield from (name for name, norm in zip(found, norms, strict=True) if not math.isfinite(norm))


def norm_of(tensors: Iterable[Tensor]) -> float:
    """The norm of all of them together, in one call; infinite or NaN where any of them is. The only wait for the device."""
    held = [tensor.detach() for tensor in tensors]
    return float(torch.linalg.vector_norm(torch.stack(torch_private.foreach_norm(held)))) if held else 0.0


def describe(path: Path) -> list[str]:
    """What is not finite in a file that `NonFiniteUpdate.save` wrote: a line for the parameters, and one for each column."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            told = file.metadata() or {}
            columns = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (it is no mapping)
        parameters, step = json.loads(told["parameters"]), told["step"]
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise UserError(f"{path} does not hold the rows of an update: {error}.") from error
    lines = [f"step {step}: {len(columns['sampled'])} rows, {int((columns['sampled'] > 0).sum())} decisions"]
    if parameters:
        what = "gradients that are not finite" if told.get("of") == "gradient" else "weights that are not finite or too large"
        lines.append(f"{what}: {_some(parameters)}")
    found = [line for name, column in sorted(columns.items()) if (line := _column_line(name, column, columns["sampled"]))]
    return [*lines, *(found or ["every column of the rows is finite: it came about in the policy itself"])]


def _column_line(name: str, column: Tensor, sampled: Tensor) -> str:
    """What of a column is not finite, where somebody decided: elsewhere it belongs to nobody and may hold anything."""
    if not column.is_floating_point():
        return ""
    wrong = ~column.isfinite()
    if column.shape[: sampled.dim()] == sampled.shape:
        wrong = wrong.reshape(*sampled.shape, -1).any(-1) & (sampled > 0)
    rows = wrong.reshape(len(wrong), -1).any(1).nonzero().flatten().tolist() if wrong.dim() else []
    if not rows:
        return ""
    return f"{name}: {int(wrong.sum())} values that are not finite, in {len(rows)} of {len(column)} rows: {_some(rows)}"


def _some(items: list[object]) -> str:
    more = f" and {len(items) - SHOWN} more" if len(items) > SHOWN else ""
    return ", ".join(map(str, items[:SHOWN])) + more


def _flat(value: object, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every tensor of a batch with its place in it."""
    if isinstance(value, Tensor):
        yield path, value
        return
    if isinstance(value, View):
        value = value.columns()
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.name not in UNCUT}
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _flat(item, f"{path}.{name}" if path else str(name))


def _names(policy: object) -> dict[int, str]:
    modules = (
        {"": policy} if isinstance(policy, nn.Module) else {"": getattr(policy, "model", None), **getattr(policy, "heads", {})}
    )
    return {
        id(parameter): f"{place}.{name}" if place else name
        for place, module in modules.items()
        if isinstance(module, nn.Module)
        for name, parameter in module.named_parameters()
    }
