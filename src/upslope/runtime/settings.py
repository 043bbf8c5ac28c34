"""The numbers of a run that are not the method's: sizes, learning rate, sampling, seeds. Kept whole in ``run.toml``.

No torch here: the command line reads this file to answer ``--help``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, get_args

from upslope.errors import UserError
from upslope.fields import hints, problem, shown
from upslope.plain_data import JsonDict
from upslope.runtime.default_lr import default_lr
from upslope.runtime.settings_values import BOUNDS, ENGINES, WHOLE, best_of, check_engine, target_of

Device = Literal["auto", "cpu", "cuda"]
Domain = Literal["text", "control"]
"""Kinds of tasks: answered in text by a language model, or acted in by a small network. Fields of `Settings` that mean something in
one of them only have it as metadata."""
EVALUATIONS = 10
"""In a run whose end or best checkpoint goes by them."""


def text_only(default: object) -> Any:
    """A setting of text tasks."""
    return dataclasses.field(default=default, metadata={"domain": "text"})


def control_only(default: object) -> Any:
    """A setting of control tasks."""
    return dataclasses.field(default=default, metadata={"domain": "control"})


@dataclass(frozen=True)
class Settings:
    """A value left out takes the default for the kind of task and model; ``run.toml`` shows what it became."""

    steps: int | None = None
    """How often to sample and learn. (text 200; control 20, or 100 with continuous actions; with stored experience 50)"""
    seed: int = 0
    """Repeats the run to the last bit, with the same number of threads on a CPU."""
    lr: float | None = None
    """Learning rate at its height. Too high destroys the policy within tens of steps. (tiny 2e-4; other models 1e-6; with `lora` a
    multiple of that, as it says; control 3e-4)"""
    schedule: Literal["constant", "linear", "cosine"] | None = None
    """How the learning rate goes on after the warm-up, down to `lr_floor`. (linear)"""
    warmup: int | None = None
    """Steps over which the learning rate rises. (text 10, or half of a run shorter than 20; control 0)"""
    lr_floor: float | None = None
    """Learning rate at the end, as a share of `lr`. (text 0.1; control 0)"""
    grad_clip: float | None = None
    """Largest gradient norm; a longer gradient is shortened to it. 0 shortens none. (text 1; control 0.5)"""
    adam_beta2: float | None = None
    """Adam's memory of squared gradients; smaller forgets faster. (text 0.95; control 0.999)"""
    adam_eps: float | None = None
    """Added to Adam's divisor. (text 1e-8; control 1e-5)"""
    adam_states: Literal["float32", "bfloat16", "8bit", "offload"] = text_only("float32")
    """Text: what Adam's moments are held in. `bfloat16` takes half the memory of `float32` and rounds at random, without bias;
    `8bit` takes a quarter, as torchao's AdamW8bit: 256 values, the nearest of which is taken, times a scale for every 256 numbers;
    `offload` holds float32 in the host's memory and takes half a GiB of a GPU's, for slower updates; on a CPU it is `float32`."""
    weight_decay: float = 0.0
    """Pull of the weights towards zero, per unit of learning rate."""
    plain: bool = False
    """Take no fast path: `transformers` computes and samples, torch's own operations learn. Slower; the same run to rounding."""
    tasks_per_step: int | None = None
    """Different problems sampled in a step, or in control beginnings of whole episodes, for methods without a critic. More lowers
    the variance between tasks; groups stay the same size. (text 32; control 8)"""
    samples_per_task: int = 8
    """Answers per problem, or episodes from each beginning: the size of a group. Group baselines need 2; below 4 they are noisy."""
    envs: int | None = control_only(None)
    """Control: environments side by side. (8; with stored experience 1; with whole episodes 64)"""
    env_workers: int = control_only(1)
    """Control: processes that step the environments, this one included. The results are the same; it pays for slow simulators such
    as MuJoCo's where cores are free."""
    horizon: int | None = control_only(None)
    """Control: steps of each environment in a step of the run. (256; with stored experience 1000)"""
    offline_steps: int | None = control_only(None)
    """Control, with a dataset: so many of the steps come first and learn from it alone; the others act too. (all of them for
    methods made for datasets, else 0)"""
    passes: int | None = None
    """Times the sampled data are gone through. More squeezes more out of them and drifts further. (text 1; control 10)"""
    updates_per_step: int | None = None
    """Optimiser steps in a pass, each on an equal share. Above 1 the ratio leaves one and the clip matters.
    (text 1; control 0: by minibatch; with stored experience 1000, each on a minibatch of its own)"""
    minibatch: int | None = control_only(None)
    """Control: decisions in an update, unless `updates_per_step` is given. (64; with stored experience 256)"""
    train_problems: int | None = text_only(None)
    """Text: train on so many problems only, the same throughout, so that they come back: of a task that makes its own those that
    the seed draws, of a file the first by their hash. Fewer are learned by heart sooner. (all there are)"""
    max_tokens: int | None = text_only(None)
    """Text: the most tokens of an answer. (the task's own)"""
    temperature: float = text_only(1.0)
    """Text: of sampling. Above 1 tries more, below 1 less. Log-probabilities are taken at it throughout."""
    top_p: float = text_only(1.0)
    """Text: sample only from the likeliest tokens that make up this share."""
    top_k: int = text_only(0)
    """Text: sample only from this many likeliest tokens; 0 is all."""
    min_p: float = text_only(0.0)
    """Text: sample only tokens at least this likely relative to the likeliest."""
    stop: str = text_only("")
    """Text: an answer ends where it has said this, such as a line end or a closing tag."""
    columns: str = text_only("")
    """Text: of a file of problems, the columns of the prompt, the answer, the split, a system message, and of solution, hints,
    documents, category and difficulty, as in prompt=question,category=subject; those left out are recognised by name. answer= says
    that there is none."""
    system: str = text_only("")
    """Text: a system message before every prompt that has none of its own; @FILE reads it from a file."""
    template: str = text_only("")
    """Text: further arguments of the model's chat template, as in enable_thinking=false."""
    long: Literal["refuse", "cut", "skip"] = text_only("refuse")
    """Text: what becomes of a prompt that leaves too little room for an answer of `max_tokens`. `refuse` names it before the run
    begins; `cut` reads only its end, in training and evaluation alike, while the reward is given all of it; `skip` leaves the
    problem out, and where a task makes its problems on the spot another is drawn in its place."""
    audit: Literal["on", "off"] = text_only("on")
    """Text: before the first rollout the reward is tried on the expected answer, an empty one, nonsense and another problem's, of
    twenty problems; what is odd is said."""
    sandbox: Literal["full", "weak"] = text_only("full")
    """Text, with `--reward tests`: how programs that the model wrote are held. `weak` is limits only, for machines without
    bubblewrap: such a program can read and send whatever you can, and every line of the run's logs says so."""
    judge: str = text_only("")
    """Text: who says which of two answers is better, for methods that compare them: the folder of a run or a checkpoint, the
    address of an OpenAI-compatible server such as http://127.0.0.1:8000, or `policy`, the policy itself. It is asked in both
    orders."""
    judge_failures: float = text_only(0.2)
    """Text: the run stops where a larger share of the judge's recent verdicts is missing, cannot be read, or changes with the order
    of the answers."""
    warm_start: float | None = text_only(None)
    """Text, `tiny` only: train on solutions until this greedy accuracy before RL begins; 0 is none. (0.4)"""
    normalise_observations: bool | None = control_only(None)
    """Control: by running mean and spread. (on for continuous actions)"""
    normalise_rewards: bool | None = control_only(None)
    """Control: by the running spread of the discounted return. (on for continuous actions)"""
    eval_every: int = 0
    """Steps between evaluations on held-out problems; 0 evaluates before and after only. (a tenth of the steps, where `keep`,
    `stop_at` or `patience` go by it)"""
    test_task: str = control_only("")
    """Control: the environment in which the policy is judged, in evaluations, `eval` and `try`, if not the one it learns in. Its
    spaces must be the same."""
    eval_problems: int | None = None
    """Held-out problems (text 500 for tiny, else 100) or episodes (control 100) of an evaluation."""
    keep: str = ""
    """`best:score` also keeps the weights of the best evaluation, in `checkpoints/best`; `best:reward` goes by the reward. Being
    the best of many, its score is too good: judge it on other problems."""
    stop_at: str = ""
    """End the run when an evaluation reaches this, as in `score=0.95`."""
    patience: int = 0
    """End the run after so many evaluations in a row that were no better than the best before them; 0 goes on."""
    checkpoint_every: int | Literal["auto", "none"] | None = None
    """Steps between checkpoints; a killed run goes on from the last. `auto` writes one as often as a twentieth of the time allows:
    every ten seconds to two minutes, of models above a billion parameters less often. Control starts fresh episodes there, so it is
    a number. `none` writes none at all, the last one neither: such a run cannot be resumed. (text auto; control 10)"""
    keep_checkpoints: int | None = None
    """How many of the last checkpoints to keep. (2 while the run goes on, 1 when it has ended)"""
    threads: int | None = None
    """Torch threads. They change the rounding, so they are part of the run. (1 for tiny and control, else all cores)"""
    engine: str = text_only("torch")
    """Text: what samples. `torch` is our own; `vllm`, where it is installed; or the address of an OpenAI-compatible server such as
    http://127.0.0.1:8000 (see `upslope serve`), which must return token ids and log-probabilities."""
    speculate: int | Literal["auto", "off"] = text_only("auto")
    """Text, on a CPU: how many tokens of an answer are drafted at the most, by n-grams of its prompt and of the answers so far, and
    computed together; one is accepted where it is what would be drawn. Answers are the same to rounding. `auto` drafts where it was
    measured to pay: for a single answer, by models of SmolLM2's size on one or two threads of an x86; `off` never; `--plain` does
    not either."""
    workers: int = text_only(0)
    """Text: processes beside this one that sample, each with a copy of the policy; 0 samples here. With `max_staleness` they sample
    while this one learns. The same plan gives the same weights wherever it is sampled."""
    where: str = text_only("local")
    """Text, with `workers`: `local` are processes here; `ray` are actors of the Ray cluster that this machine is part of, or of one
    that is started here; ray://HOST:PORT of a cluster elsewhere. Ray is an extra: pip install upslope[ray]."""
    shares: int = text_only(1)
    """Text: pieces that a step's problems are cut into, each sampled in one go by whoever is free. It changes the last bits, so it
    is part of the run; fewer than `workers` leaves some without work."""
    learners: int = text_only(1)
    """Text: processes that learn together, this one among them, each from its share of a step's rows; with GPUs each has one of its
    own. Sampling stays here, or with `workers`. The same run to rounding."""
    shard: bool = text_only(False)
    """Text, with `learners`: each of them holds its part of weights, gradients and Adam's moments (FSDP2), and a layer is put
    together when it is computed. `transformers` computes what is learned; this process has one whole set beside, to sample with."""
    max_staleness: int = text_only(0)
    """Text: so many steps may be learned from between the weights that sample and those that learn. 0 waits for each other; 1 hides
    the shorter of the two behind the longer. Above 0 a method must correct for it, as with +asyncflow."""
    pace: Literal["exact", "free"] = text_only("exact")
    """Text, with `max_staleness`: `exact` samples the rows of each step with the weights of just so many steps before, so that the
    run repeats to the last bit; `free` takes the newest there are when a worker begins, never older ones than that."""
    interrupt: bool = text_only(False)
    """Text, at a free pace: a worker takes newer weights inside an answer too, up to three times on its way to the token limit, in
    place of ending it with those it began with. Every token knows which weights drew it."""
    reuse: Literal["auto", "off"] = text_only("auto")
    """Text: whether learning starts from what sampling has computed, where that was here and of the same weights. It changes the
    last bits; where there are workers, shares or older weights it is off."""
    reward_workers: int = text_only(0)
    """Text: processes beside this one that score answers; 0 scores them where they are sampled. With `max_staleness` they score
    while this one learns. A reward that fails there costs its answer, not the run."""
    reward_seconds: float | None = text_only(None)
    """Text, with `reward_workers`: what scoring an answer may take; a process that takes longer is killed. (as long as it takes)"""
    reward_retries: int = text_only(1)
    """Text, with `reward_workers`: how often an answer is tried again that could not be scored by itself, before it is dropped."""
    uncorrected: bool = text_only(False)
    """Text: allow a `max_staleness` above 0, or a `sampling_precision` of fp8, with a method that does not correct for it."""
    device: Device = "auto"
    """Where a language model computes. `auto` takes a GPU if there is one, except for `tiny`; control is on the CPU."""
    precision: Literal["auto", "float32"] = text_only("auto")
    """Text: of a GPU's products. `auto` is bfloat16, with weights, log-probabilities and the optimiser in float32."""
    sampling_precision: Literal["auto", "fp8"] = text_only("auto")
    """Text: what answers are sampled in. `auto` is the precision of products; `fp8` multiplies weights and inputs in eight bits, in
    all of the layers' matrices but those behind attention, so that a GPU reads half as much (from Ada on; a CPU computes the same,
    more slowly). A method must correct for that, as with +asyncflow; the metric engine_gap says how far it is. Evaluations of the
    run are sampled so too."""
    recompute: int | Literal["auto", "all", "off"] = dataclasses.field(
        default="auto", metadata={"domain": "text", "switch": ("all", "off")}
    )
    """Text: of so many layers keep no activations for the backward pass, and compute them again: less memory, for `all` of them at
    about one more forward pass. `auto` takes as few as the model, the sizes and the memory of the GPU ask for; on a CPU none."""
    slice_tokens: int | None = text_only(None)
    """Text: the most tokens that learning looks at together. More makes slices larger and fewer, and takes more memory; the result
    is the same to rounding. (on a GPU as many as keep it busy and its memory holds; on a CPU as many as fit into 4 GiB)"""
    lora: int = text_only(0)
    """Text: train low-rank adapters of this rank in place of the weights; 0 trains the weights. Adapters need a larger `lr`: left
    out, it is that of full training times 800 / rank (`tiny`: 160 / rank), with ranks below 8 as 8 and above 64 as 64."""
    base_precision: Literal["auto", "nf4"] = text_only("auto")
    """Text, with `lora`: what the layers' matrices under the adapters are held in. `auto` is bfloat16 on a GPU, float32 on a CPU;
    `nf4` is four bits, as QLoRA's: about a quarter of bfloat16. They are unpacked one at a time whenever something is multiplied
    with them, which makes sampling slower. Embedding, head, norms and biases stay as they are."""
    watch_kl: bool | None = None
    """Measure the KL to the start each step even if the method does not need it: one more forward pass. (on for tiny)"""
    record: Literal["all", "some", "none"] = "some"
    """What is kept to be looked at on the board. Of a step in text, token by token: `some` groups, while that takes less than a
    fiftieth of the time; `all` of them; or `none`. In control an episode at each evaluation, unless it is `none`."""
    samples_logged: int = 4
    """Rollouts written to ``samples.jsonl`` each step."""

    def __post_init__(self) -> None:
        if isinstance(self.audit, bool):  # as one would say it in Python
            object.__setattr__(self, "audit", "on" if self.audit else "off")
        if isinstance(self.recompute, bool):  # the same, and in the files of older runs
            object.__setattr__(self, "recompute", "all" if self.recompute else "off")
        if isinstance(self.speculate, bool):
            object.__setattr__(self, "speculate", "auto" if self.speculate else "off")
        kinds = hints(Settings)
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            interval = BOUNDS.get(f.name, WHOLE if kinds[f.name] is int else "")
            if wrong := problem(value, kinds[f.name], interval):
                raise UserError(f"--{f.name.replace('_', '-')} is {shown(value)}; {wrong}")
        if self.engine not in ENGINES:
            check_engine(self.engine)
        if self.keep and best_of(self.keep) is None:
            raise UserError(f"--keep is {self.keep!r}; it must be best:score or best:reward.")
        if self.stop_at:
            target_of(self.stop_at)
        if self.train_problems and self.train_problems < (tasks := self.tasks_per_step or 0):
            told = f"--train-problems {self.train_problems} is fewer than the {tasks} of a step"
            raise UserError(f"{told}. Give at least {tasks}, or --tasks-per-step {self.train_problems}.")

    @property
    def stops(self) -> tuple[str, ...]:
        """`stop` as sampling takes it."""
        return (self.stop,) if self.stop else ()

    def resolved(
        self,
        domain: Domain,
        model: str,
        *,
        max_tokens: int = 0,
        continuous: bool = False,
        recipe: Mapping[str, object] | None = None,
    ) -> Settings:
        """These settings with every open one filled in for this kind of task and model.

        Args:
            recipe: what the method's paper sets; it goes before the defaults.
        """
        text, tiny = domain == "text", model.split(":")[0] == "tiny"
        steps = self.steps if self.steps is not None else 200
        defaults: JsonDict = {
            "steps": 200 if text else 100 if continuous else 20,
            "lr": default_lr(model, self.lora) if text else 3e-4,
            "schedule": "linear",
            "warmup": min(10, steps // 2) if text else 0,
            "lr_floor": 0.1 if text else 0.0,
            "grad_clip": 1.0 if text else 0.5,
            "adam_beta2": 0.95 if text else 0.999,
            "adam_eps": 1e-8 if text else 1e-5,
            "passes": 1 if text else 10,
            "updates_per_step": 1 if text else 0,
            "tasks_per_step": 32 if text else 8,
            "max_tokens": max_tokens or 1,
            "warm_start": 0.4 if text and tiny else 0.0,
            "normalise_observations": continuous,
            "normalise_rewards": continuous,
            "eval_problems": (500 if tiny else 100) if text else 100,
            "checkpoint_every": "auto" if text else 10,
            "threads": 1 if tiny or not text else _cores(),
            "watch_kl": text and tiny,
            "envs": 8,
            "horizon": 256,
            "minibatch": 64,
            "offline_steps": 0,
        } | dict(recipe or {})
        open_ones = {name for name in defaults if getattr(self, name) is None}
        made = dataclasses.replace(self, **{name: value for name, value in defaults.items() if name in open_ones})
        if (made.keep or made.stop_at or made.patience) and not made.eval_every:
            made = dataclasses.replace(made, eval_every=max(1, (made.steps or 0) // EVALUATIONS))
        return made


STORED_EXPERIENCE: Mapping[str, object] = MappingProxyType(
    {
        "steps": 50,
        "envs": 1,
        "horizon": 1000,
        "updates_per_step": 1000,
        "passes": 1,
        "minibatch": 256,
        "schedule": "constant",
        "grad_clip": 0.0,
        "adam_eps": 1e-8,
        "normalise_observations": False,
        "normalise_rewards": False,
    }
)
"""Defaults of methods that learn from stored experience, as Stable-Baselines3 and CORL have them: one update per step of the
environment, at a constant learning rate."""


WHOLE_EPISODES: Mapping[str, object] = MappingProxyType(
    {"envs": 64, "passes": 4, "updates_per_step": 8, "normalise_rewards": False}
)
"""Defaults of methods that compare whole episodes in control: returns are compared as they are."""


ONLY_FOR: dict[Domain, tuple[str, ...]] = {
    domain: tuple(f.name for f in dataclasses.fields(Settings) if f.metadata.get("domain") == domain) for domain in get_args(Domain)
}
"""Settings that mean something in one kind of task only."""


def check_names(given: Iterable[str], but: tuple[str, ...] = (), where: str = "", parts: Iterable[tuple[str, Any]] = ()) -> None:
    """Refuses names that no setting has, or, ``where`` they may not be given, those in ``but``.

    Args:
        parts: of the method at hand, whose knobs may be meant.
    """
    from upslope.runtime.synonyms import meant

    known = [f.name for f in dataclasses.fields(Settings) if f.name not in but]
    for name in given:
        if name not in known:
            raise UserError(f"no setting named {name!r}{where}.{meant(name, known, parts)}")


def check_domain(settings: Settings, domain: Domain, task: str, model: str = "tiny") -> None:
    """Refuses settings, as a user gave them, that would be ignored on this kind of task."""
    if domain == "control" and model != "tiny":
        raise UserError(f"--model {model} goes with text; {task} is an environment, whose policy is a small network. Leave it out.")
    if domain == "text" and settings.updates_per_step == 0:
        raise UserError("--updates-per-step is 0; text needs at least 1. In control 0 leaves it to --minibatch.")
    if domain == "control" and settings.checkpoint_every == "auto":
        raise UserError("--checkpoint-every auto goes with text; in control episodes begin anew at a checkpoint. Give a number.")
    plain = Settings()
    for other, names in ONLY_FOR.items():
        for name in names:
            value = getattr(settings, name)
            if other != domain and value != getattr(plain, name):
                kind = "an environment" if domain == "control" else "text"
                given = f"--{name.replace('_', '-')}" + ("" if value is True else f" {value}")
                raise UserError(f"{given} goes with {other}; {task} is {kind}. Leave it out.")


def of_domain(settings: Mapping[str, Any], domain: Domain) -> dict[str, Any]:
    """Settings without those that are for another kind of task."""
    others = {name for other, names in ONLY_FOR.items() if other != domain for name in names}
    return {name: value for name, value in settings.items() if name not in others}


def _cores() -> int:
    import os

    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
