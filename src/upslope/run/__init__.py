"""The run: build what the plan asks for, train, and go on exactly where a stop left off."""

from __future__ import annotations

import dataclasses
import errno
import json
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w

from upslope.errors import Remark, UserError
from upslope.plain_data import JsonDict, Knobs
from upslope.plan import Plan, checked_table
from upslope.policies.control.own_module import OwnModule
from upslope.policies.trained import is_run, underlying_model, what_was_taken
from upslope.run.adapter_base import check_base, keep_base
from upslope.run.lengthening import Lengthening
from upslope.run.listeners import Listeners
from upslope.run.loop import train
from upslope.run.watcher import Stopped, Watcher
from upslope.runtime import trust, user_code
from upslope.runtime.checkpoint_files import CheckpointReader
from upslope.runtime.code_bundle import Bundle
from upslope.runtime.files import load_state, write_text
from upslope.runtime.memory import explain_out_of_memory
from upslope.runtime.method_file import check_can_be_found_again, user_bundles
from upslope.runtime.python_objects import PythonObjects
from upslope.runtime.reward_text import RewardText
from upslope.runtime.run_folder import RunFolder, check_new
from upslope.runtime.run_lock import owned
from upslope.runtime.settings import check_domain
from upslope.runtime.settings_remarks import remarks_on
from upslope.runtime.trackers import check_trackers
from upslope.setting_up import Components, DryRun, set_up
from upslope.sizes.estimate import Estimate

if TYPE_CHECKING:
    from upslope.experience.dataset import Dataset
    from upslope.rollout.deployed import DeployedPolicy

__all__ = ["Run", "Stopped", "Watcher", "dry_run", "load_components", "resume", "set_up_plan", "start"]

MENDABLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.EIO, errno.EMFILE)
"""What the system refuses for a reason that the user can mend."""


@dataclass
class Run:
    """A run, under way or finished. To look at it runs nothing of the user's code that it holds; its `plan` and `policy` do."""

    folder: RunFolder
    given: Plan | None = field(default=None, repr=False)
    """The plan, where it is known already."""
    components: Components | None = field(default=None, repr=False)
    """Task, policy and rollout, while they are in memory."""
    trust: bool = False
    """Whether code in its folder that this machine did not write may run."""
    objects: PythonObjects = field(default_factory=PythonObjects, repr=False)
    """What it was given as Python objects that its folder could not keep."""
    checkpoint: Path | None = None
    """The checkpoint that the components were loaded from."""
    estimate: Estimate | None = field(default=None, repr=False)
    """What it takes, of a run that begins here."""
    use_best: bool = False
    """Whether its best evaluation's weights are meant (``keep="best:score"``), not the last ones."""

    @property
    def path(self) -> Path:
        return self.folder.path

    @cached_property
    def plan(self) -> Plan:
        """Method, task, reward and settings as objects."""
        return self.given or Plan.from_folder(self.folder, self.trust, self.objects)

    @cached_property
    def table(self) -> JsonDict:
        """The same as plain data: what ``run.toml`` says."""
        return checked_table(self.folder)

    @property
    def policy(self) -> Any:
        """The policy as the run left it."""
        if self.components is None:
            self.components = load_components(self)
        return self.components.policy

    @cached_property
    def controller(self) -> DeployedPolicy:
        """The policy of an environment ready for use: raw observations in, actions for the environment out."""
        from upslope.rollout.deployed import DeployedPolicy

        if self.table["domain"] != "control":
            raise UserError(
                f"{self.table['task']} is answered in text and has no observations. 'upslope serve {self.path}' answers, "
                f"and 'upslope export {self.path}' writes it for other programs."
            )
        self.policy  # noqa: B018  (loads what is needed)
        assert self.components is not None
        made = self.components
        return DeployedPolicy(made.task, made.policy, made.rollout.observations, made.settings.seed)

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = False,
        action_masks: Any = None,
    ) -> tuple[Any, Any]:
        """Actions for an observation or a batch, and the state: what Stable-Baselines3's models answer to `predict`.

        Args:
            observation: As the environment gives it; the run's own normalisation is applied here.
            state: What the last call gave back, of a policy that remembers; ``None`` begins.
            episode_start: Whether an episode begins with each of them.
            deterministic: The likeliest action, otherwise one is drawn.
            action_masks: A 1 for each choice that is allowed here and a 0 for each other, as MaskablePPO takes them.

        Raises:
            UserError: if the run's task is text, or the observation is not of the environment's shape.
        """
        return self.controller.predict(observation, state, episode_start, deterministic, action_masks)

    def export(
        self, to: str | Path, *, merge: bool = False, checkpoint: str | int = "", dtype: str = "", gguf: bool = False
    ) -> JsonDict:
        """Writes what was trained for use in other programs.

        A model of text becomes a folder for `transformers`, vLLM, llama.cpp or peft; no code that the run holds is run for it. The
        policy of an environment becomes one file, ``.onnx`` or ``.pt`` (TorchScript), once it agrees with `predict`.

        Args:
            to: A new or empty folder; for an environment, the file.
            merge: Text: adapters become part of the weights; without it they are written alone, as peft has them.
            checkpoint: ``"best"`` or ``"last"``, for text also a step; left out, the best one where it was kept, else the last.
            dtype: Text: ``"bfloat16"``, ``"float16"`` or ``"float32"``; left out, bfloat16, and float32 for adapters alone.
            gguf: Text: also one ``.gguf`` file, for llama.cpp.

        Returns:
            What was written (``folder`` or ``file``), and of an environment how it was checked.

        Raises:
            UserError: before anything is written, if that cannot be.
        """
        from upslope.rollout.export_control import export_control
        from upslope.run.exporting import TextExport, export_text

        wanted = TextExport(merge, str(checkpoint), dtype, gguf)
        if self.table["domain"] == "text":
            return export_text(self, to, wanted)
        if given := [name for name, value in vars(wanted).items() if value and name != "checkpoint"]:
            raise UserError(f"--{given[0]} goes with text; {self.table['task']} is an environment. Leave it out.")
        if checkpoint not in ("", "best", "last"):
            raise UserError(f"--checkpoint {checkpoint!r}: of an environment's run it is best or last.")
        best = checkpoint == "best" or (not checkpoint and self.folder.best.is_dir())
        if best:
            self.folder.kept_best()
        chosen = self if self.use_best == best else dataclasses.replace(self, components=None, use_best=best)
        return export_control(chosen.controller, Path(to))

    @property
    def lengthened_at(self) -> set[int]:
        """Steps at which it was asked to go on for longer than planned."""
        return {entry["at"] for entry in self.folder.table().get("lengthened", [])}

    @property
    def metrics(self) -> list[JsonDict]:
        """One record per step."""
        return [record for record in self.folder.read("metrics.jsonl") if record.get("kind") == "step"]

    @property
    def evaluations(self) -> list[JsonDict]:
        """One record per evaluation on held-out problems."""
        return [record for record in self.folder.read("metrics.jsonl") if record.get("kind") == "evaluation"]

    @property
    def summary(self) -> JsonDict:
        """What ``summary.json`` says of a finished run."""
        file = self.path / "summary.json"
        if not file.exists():
            raise UserError(f"{self.path} is not finished. 'upslope resume {self.path}' goes on with it.")
        try:
            found = json.loads(file.read_bytes())
        except (ValueError, RecursionError) as problem:
            raise UserError(f"{file} is damaged: {problem}. Delete it, and 'upslope resume {self.path}' writes it again.") from None
        return found


def start(plan: Plan, knobs: Knobs | None = None, out: str | Path | None = None, watcher: Watcher | None = None) -> Run:
    """Makes the folder of a new run and trains.

    Args:
        knobs: of the method, by path (``{"surrogate.high": 0.3}``).
    """
    if out is not None:
        check_new(out)
    check_trackers(plan.trackers)
    check_can_be_found_again(plan.method)
    components = set_up_plan(plan, knobs)
    dataset = getattr(components, "dataset", None)
    plan = dataclasses.replace(plan, dataset_digest=dataset.digest if dataset is not None else "")
    check_domain(plan.settings, plan.domain, plan.task, "tiny" if isinstance(plan.objects.model, OwnModule) else plan.model)
    components.check_given(plan.settings)
    settled = components.settle_reward(plan.reward)
    plan = dataclasses.replace(plan, settings=components.settings, method=components.method, reward=settled)
    estimate = components.estimate(Path(out or "runs").expanduser())
    estimate.check_disk()
    table, bundles = plan.table(), user_bundles(plan.method)
    if dataset is not None:
        from upslope.experience.given import card_in_run

        table["dataset_card"] = card_in_run(dataset)
    if ".py:" in table["task"]:
        table["task"] = _kept_code(table["task"], bundles)
    if ".py:" in plan.settings.test_task:
        table["settings"]["test_task"] = _kept_code(plan.settings.test_task, bundles)
    rewards = [RewardText.parse(text) for text in table["reward"]]
    table["reward"] = [str(each.named(_kept_code(each.name, bundles)) if each.is_code else each) for each in rewards]
    user_code.check_bundles_agree(bundles)
    taken = [what_was_taken(plan.model)] if plan.domain == "text" and is_run(plan.model) else []
    for remark in taken + remarks_on(plan.settings, underlying_model(plan.model)):
        warnings.warn(Remark(remark), stacklevel=2)
    if lost := table["unkept"]:
        warnings.warn(Remark(_what_resume_needs(lost)), stacklevel=2)
    called = re.sub(r"[=\]]", "", f"{plan.method.name}-{components.task.name}-{plan.settings.seed}")
    name = re.sub(r"[^\w.+-]+", "-", called)
    with _mendable():
        folder = RunFolder.create(out, name[-150:])
        with owned(folder.path):
            user_code.keep(bundles, folder.path / "code")
            listening = watcher.table() if isinstance(watcher, Listeners) else {}
            kept = plan.keep(folder.path, table) | listening
            kept["base"] = keep_base(folder, components.policy, plan.model)
            write_text(folder.path / "run.toml", tomli_w.dumps(kept))
            trust.remember(trust.code_of(table, folder.path / "code"))
            return train(Run(folder, plan, components, estimate=estimate), watcher or Watcher())


def dry_run(plan: Plan, knobs: Knobs | None = None, out: str | Path | None = None, memory: str = "") -> Estimate:
    """What a run of a plan would take, hold and write. Nothing is loaded and nothing is written.

    Args:
        memory: of a device that need not be here, as in ``80GB``; left out, this machine's.
    """
    if out is not None:
        check_new(out)
    check_trackers(plan.trackers)
    components = set_up_plan(plan, knobs, dry=DryRun(memory))
    check_domain(plan.settings, plan.domain, plan.task, "tiny" if isinstance(plan.objects.model, OwnModule) else plan.model)
    components.check_given(plan.settings)
    return components.estimate(Path(out or "runs").expanduser())


def _kept_code(spec: str, bundles: set[Bundle]) -> str:
    """``file.py:name`` as ``run.toml`` has it; the file goes among those that the run keeps."""
    path, _, name = spec.rpartition(":")
    module = user_code.load_file(path).__name__
    bundles.add(user_code.bundle_of(module))
    return user_code.reference(module, name)


def set_up_plan(plan: Plan, knobs: Knobs | None = None, for_training: bool = True, dry: DryRun | None = None) -> Components:
    """The components of a plan (`upslope.setting_up.set_up`)."""
    return set_up(
        plan.method, plan.task, plan.base or plan.model, plan.settings, plan.reward, plan.test_data, knobs,
        for_training=for_training, objects=plan.objects, dataset=_dataset(plan) if for_training else None, dry=dry,
    )  # fmt: skip


def _dataset(plan: Plan) -> Dataset | None:
    """What the plan learns from, the same as when the run began."""
    from upslope.experience.given import dataset_again

    if plan.objects.dataset is not None:
        return plan.objects.dataset.dataset
    return dataset_again(plan.dataset, plan.dataset_digest) if plan.dataset else None


def _what_resume_needs(lost: list[str]) -> str:
    what, again = " and ".join(lost), ", ".join(f"{name}=..." for name in lost)
    return f"the {what} cannot be kept with the run: up.resume(RUN, {again}) and up.load(RUN, {again}) will need it again."


def resume(
    path: str | Path,
    watcher: Watcher | None = None,
    trusted: bool = False,
    objects: PythonObjects | None = None,
    steps: int | None = None,
) -> Run:
    """Goes on with a run that was stopped, killed or crashed. A finished one is returned as it is, unless it is to be longer.

    Args:
        trusted: code in the folder that this machine did not write may run (`upslope.runtime.trust`).
        objects: what the run was given as Python objects that its folder could not keep.
        steps: how many there shall be in all, if not as many as were planned.
    """
    folder, objects = RunFolder.open(path), objects or PythonObjects()
    if (folder.path / "summary.json").exists() and steps is None:
        return Run(folder, trust=trusted, objects=objects)
    if folder.keeps_none:
        folder.latest()  # which says so
    with _mendable(), owned(folder.path):
        plan = Plan.from_folder(folder, trusted, objects)
        longer = None if steps is None else Lengthening.of(folder, plan.settings, steps)
        plan = plan if longer is None else dataclasses.replace(plan, settings=longer.after)
        components = set_up_plan(plan)
        keep_base(folder, components.policy, plan.model, check_base(folder, components.policy))
        if longer is not None:  # all that could be refused has been looked at
            longer.write()
        estimate = components.estimate(folder.path)
        return train(Run(folder, plan, components, estimate=estimate), watcher or Watcher())


def load_components(run: Run, at: Path | None = None) -> Components:
    """Task, policy and rollout of a run as a checkpoint has them, for evaluation and use, without its engine and in the policy's
    own precision.

    Args:
        at: Which one; left out, the last whole one, or the one of the best evaluation if the run is to be used at its best.
    """
    plan = dataclasses.replace(run.plan, settings=dataclasses.replace(run.plan.settings, engine="torch", sampling_precision="auto"))
    components = set_up_plan(plan, for_training=False)
    check_base(run.folder, components.policy)

    def load(files: CheckpointReader) -> None:
        components.policy.load(files)
        components.rollout.load_state(load_state(files, "learner")["rollout"])

    if run.use_best or at is not None:
        run.checkpoint, remarks = at or run.folder.kept_best(), list[str]()
        load(run.folder.reader(run.checkpoint))
    else:
        _, run.checkpoint, remarks = run.folder.last_whole(load)
    for remark in remarks:
        warnings.warn(Remark(remark), stacklevel=2)
    return components


@contextmanager
def _mendable() -> Iterator[None]:
    """What the system refuses (a full disk, a folder that may not be written, memory) as an error in words."""
    try:
        yield
    except OSError as problem:
        if problem.errno not in MENDABLE:
            raise
        what = f"{problem.filename or 'the run'} cannot be written: {problem.strerror}"
        raise UserError(f"{what}. What was saved before is safe.") from problem
    except (MemoryError, RuntimeError) as problem:
        explained = explain_out_of_memory(problem)
        if explained is None:
            raise
        raise explained from problem
