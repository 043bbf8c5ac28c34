"""Components of text tasks: problems, a language model, sampled answers."""

from __future__ import annotations

import dataclasses
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from upslope.errors import Remark, UserError
from upslope.learners.base import Learner
from upslope.learners.phases import check_steps
from upslope.learners.policy_gradient import POLICY_COLUMNS
from upslope.objective import estimator
from upslope.objective.references.speaking import speakers
from upslope.plain_data import JsonDict, Knobs
from upslope.rewards import load_reward
from upslope.rewards.judging import VERDICTS, Judge
from upslope.rewards.model_reward import reward_models, tells_no_right_answers
from upslope.rollout.evaluation import fewer_than_asked
from upslope.rollout.reference_cache import REFERENCES, ReferenceCache
from upslope.runtime.checkpoint_files import CheckpointWriter
from upslope.runtime.run_folder import PROBLEMS, RunFolder
from upslope.runtime.seeding import numpy_generator, uniforms
from upslope.runtime.settings import Settings
from upslope.runtime.slow_work import said_if_slow
from upslope.runtime.threads import torch_threads
from upslope.setting_up.ahead import allocate_cache, allocate_moments
from upslope.setting_up.base import Components, DryRun, Progress, pick_device, settled_method
from upslope.setting_up.base_precision import check_base_precision, refuse_plain
from upslope.setting_up.evaluating import evaluated
from upslope.setting_up.sampling_precision import check_can_sample, check_sampling_precision
from upslope.setting_up.scoring import score_apart
from upslope.setting_up.speculate import check_can_draft, check_speculate
from upslope.setting_up.text_sizes import TextSizes
from upslope.setting_up.where import check_shard, check_where, interrupt_every, reuses_sampling, worker_pool
from upslope.sizes.estimate import Estimate
from upslope.tasks.fixed import fix_problems
from upslope.tasks.giving import check_given
from upslope.tasks.text import NoReward, UndecidedReward, WithReward
from upslope.types import Method, Network

if TYPE_CHECKING:
    from upslope.policies.given import GivenModel
    from upslope.policies.language_model import LanguageModel
    from upslope.rollout.sampling_crew import SamplingCrew
    from upslope.rollout.store import ScoredRows
    from upslope.tasks.text import TextTask

RECORDING, FREE_RECORDING = 0.02, 1.0
"""Share of the time of the steps that recording some rollouts may take, and seconds that are not counted."""


def apart_dtype(settings: Settings) -> torch.dtype | None:
    """The precision in which weights with adapters are held, or unpacked, once and unmerged; None: adapters are merged, as on a
    CPU unless the weights are packed."""
    if settings.base_precision != "auto" and settings.device != "cuda":
        return torch.float32
    return torch.bfloat16 if settings.device == "cuda" and settings.precision != "float32" else None


class TextComponents(Components):
    """Problems in text, answered by a language model."""

    score_name = "accuracy"

    def __init__(
        self,
        method: Method,
        task: TextTask,
        model: str | GivenModel,
        settings: Settings,
        knobs: Knobs,
        checking: Progress | None = None,
        dry: DryRun | None = None,
    ):
        from upslope.policies.token_text import TokenText
        from upslope.policies.trained import is_run, underlying_model
        from upslope.rollout.text import TextRollout

        like = underlying_model(model) if isinstance(model, str) else model.like
        if not isinstance(model, str) or is_run(model):  # it is trained already, and otherwise like the model it began with
            settings = dataclasses.replace(settings, warm_start=settings.warm_start or 0.0)
        if isinstance(model, str):
            self._check_model(model, method)
        if method.scorer is not None and settings.watch_kl is None:  # nobody will sample from it
            settings = dataclasses.replace(settings, watch_kl=False)
        settings = settings.resolved("text", like, max_tokens=task.max_tokens)
        settings = dataclasses.replace(settings, device=pick_device(settings.device, like, dry is not None))
        self.dry = dry
        if settings.device == "cuda" and dry is None:  # its driver takes a second to wake, which the model's code takes to import
            threading.Thread(target=torch.cuda.init, daemon=True).start()
        method = settled_method(method, ("text",), knobs)
        if isinstance(method.policy, Network):
            raise UserError(f"{method.name} has policy={method.policy}, a network for control; {task.name} is answered in text. "
                            "Leave it out: --model says what answers.")  # fmt: skip
        for each in (*(stage.as_method(method) for stage in method.stages), method):
            if each.rollout is not None and each.rollout.domain != "text":
                raise UserError(f"{each.name} has rollout={each.rollout}, for environments; {task.name} is answered in text. "
                                "Leave it out: --set rollout=none.")  # fmt: skip
            estimator.check(each, POLICY_COLUMNS | getattr(each.rollout, "provides", TextRollout.provides))
        check_steps(method, settings.steps or 0)
        super().__init__(method, settings)
        check_base_precision(settings)
        check_speculate(settings)
        check_shard(method, settings)
        check_sampling_precision(method, settings)
        if dry is None:
            check_where(method, settings)
        samples = method.rollout is None or method.rollout.samples
        groups = any("group" in part.provides for part in method.data)  # made of whatever was sampled
        if samples and settings.samples_per_task < 2 and "group" in method.needs() and not groups:
            raise UserError(f"{method.name} compares the samples of a task, and --samples-per-task is 1; give at least 2.")
        check_given(task, {word: path for path, part in method.parts() for word in part.needs_of_task}, method.name)
        self.score_name = "accuracy" if task.choices is None else task.choices.score_name
        self._check_rewarded(task)
        self.tokens = settings.max_tokens or task.max_tokens
        self.policy = self._load_policy(model, task, checking)
        self.settings = self.sizes.settle(self.policy, self.prompt_lengths, self._is_alone(task))
        if dry is not None:
            return
        self.token_text = TokenText(self.policy.tokenizer)
        self.stepping = self.recording = 0.0
        self.judge: Judge | None = None
        self.pool: SamplingCrew[Any, Any] | ScoredRows | None = None
        make = self._rollout_maker()
        self.rollout = make(TextRollout if self.method.rollout is None else self.method.rollout.build)
        self.stage_rollouts = {stage.name: make(stage.rollout.build) for stage in self.method.stages}
        for name, rollout in self.stage_rollouts.items():
            rollout.stage = name

    def check_given(self, given: Settings) -> None:
        if given.eval_problems and (told := fewer_than_asked(self.task, given.eval_problems)):
            warnings.warn(Remark(told), stacklevel=2)

    @staticmethod
    def _check_model(model: str, method: Method) -> None:
        """Refuses to train a reward model's trunk to answer: it has unlearned that."""
        from upslope.policies.reward_runs import is_reward_model

        if method.scorer is None and is_reward_model(model):
            raise UserError(f"--model {model} is a run that trained a reward model, which writes no answers. Give the model it "
                            f"began with, and let it score what {method.name} samples: --reward rm:{model}.")  # fmt: skip

    def _check_rewarded(self, task: TextTask) -> None:
        """Whether there is a reward for what is sampled; where there is none, the score is another."""
        samples = self.method.rollout is None or self.method.rollout.samples
        self.pairs_judge = any(part.needs_of_task & {"pairs", "labels", "revisions"} for _, part in self.method.parts())
        if self.method.scorer is not None:
            self.score_name = "preferred"
            return
        if not isinstance(task, WithReward) and tells_no_right_answers(getattr(task, "reward", None)):
            self.score_name = "reward"
        if not isinstance(getattr(task, "reward", None), NoReward) or (samples and self.settings.judge):
            return
        if samples:
            cure = "Give one, such as --reward exact with answers, a --judge, or learn from the preferences: dpo, ipo, simpo, kto"
            raise UserError(f"{self.method.name} samples answers, and {task.name} has preferences but no reward for them. {cure}.")
        if not self.pairs_judge:
            cure = 'Give every line an "answer", or learn from the preferences: dpo, ipo, simpo, kto'
            raise UserError(f"{task.name} has no answers by which {self.method.name} could be judged. {cure}.")
        self.score_name = "preferred"

    def _load_policy(self, model: str | GivenModel, task: TextTask, checking: Progress | None) -> LanguageModel:
        """The model, checked, on its device, with adapters and heads; and the task with the prompts that fit it."""
        from upslope.policies.blank import blank_language_model, is_merged
        from upslope.policies.tokenization import PromptFormat
        from upslope.policies.trained import is_users_folder
        from upslope.rollout.parity_check import load_checked
        from upslope.rollout.prompt_lengths import check_written, fit_prompts

        settings = self.settings
        in_folder = isinstance(model, str) and is_users_folder(model)
        merged = isinstance(model, str) and is_merged(model)
        self.sizes = TextSizes(settings, self.method, self.tokens, self.dry, in_folder, merged)
        if self.dry is None:
            self.sizes.check_before_loading(model)
        dtype, packed = apart_dtype(settings) if settings.lora and not settings.plain else None, settings.base_precision != "auto"
        # What is packed goes to its device matrix by matrix: until then it is in the host's memory.
        place = "cpu" if packed else settings.device, dtype or torch.float32
        self.policy = policy = load_checked(model, settings.seed, *place) if self.dry is None else blank_language_model(model)
        policy.plain |= settings.plain
        policy.precise = settings.precision == "float32"
        if settings.shard:
            from upslope.policies.sharded import check_can_be_sharded

            check_can_be_sharded(policy)
        if packed and policy.body is None:
            refuse_plain(settings, policy.name)
        check_can_draft(settings, policy.name, policy.body is not None)
        check_can_sample(settings, policy.name, policy.body)
        if self.dry is None:
            if settings.lora:
                policy.add_lora(settings.lora, settings.seed)
                if dtype is not None and policy.body is not None:
                    policy.hold_apart(dtype, settings.device, packed)
            policy.to(settings.device)
        policy.prompt_format = PromptFormat.parse(settings.system, settings.template)
        fitted = fit_prompts(
            task, policy.tokenizer, policy.model.config, name=policy.name, max_tokens=self.tokens, long=settings.long,
            form=policy.prompt_format, progress=checking,
        )  # fmt: skip
        self.task, policy.prompt_limit, self.prompt_lengths = fitted.task, fitted.limit, fitted.lengths
        if getattr(self.method.rollout, "needs_of_task", frozenset()) & {"pairs", "labels", "solutions"}:
            check_written(fitted.task, policy.tokenizer, policy.model.config, name=policy.name, form=policy.prompt_format)
        if settings.train_problems:
            with said_if_slow(f"drawing {settings.train_problems:,} training problems"):
                self.task = fix_problems(fitted.task, settings.train_problems, numpy_generator(settings.seed, "train problems"))
        self.give_heads()
        for reward in reward_models(getattr(task, "reward", None)):
            reward.device = settings.device
            reward.check_format(policy.prompt_format)
        return policy

    def _is_alone(self, task: TextTask) -> bool:
        """Whether no other model is held on the device: no judge, no reward model, and nobody who answers in the policy's place."""
        from upslope.rollout.judges import POLICY

        judge = self.settings.judge
        if (judge and judge != POLICY and "://" not in judge) or any(reward_models(getattr(task, "reward", None))):
            return False
        stages = [stage.as_method(self.method) for stage in self.method.stages]
        return not any(map(speakers, (*stages, self.method)))

    def estimate(self, out: Path | None = None) -> Estimate:
        return self.sizes.estimate(out)

    def _rollout_maker(self) -> Callable[[Callable[..., Any]], Any]:
        """Makes rollouts with the run's sizes; all of them share the engine."""
        from upslope.rollout.embeddings import embedder
        from upslope.rollout.engines.by_name import make_engine
        from upslope.types import Sampling

        settings = self.settings
        self.sampling = sampling = Sampling(
            max_tokens=self.tokens,
            temperature=settings.temperature,
            top_k=settings.top_k,
            top_p=settings.top_p,
            min_p=settings.min_p,
            stop=settings.stops,
        )
        sizes = dict(tasks=settings.tasks_per_step or 32, samples=settings.samples_per_task, sampling=sampling, seed=settings.seed)
        engine = make_engine(settings.engine, self.policy, sampling, self.method, settings.speculate, settings.sampling_precision)
        if settings.engine == "torch":
            engine.row_bytes = self.sizes.work.row_bytes  # type: ignore[attr-defined]
        embed = embedder(self.method.needs())

        def made(build: Callable[..., Any]) -> Any:
            rollout = build(self.task, self.policy, **sizes, engine=engine)
            rollout.embed, rollout.reuse = embed, reuses_sampling(settings)
            rollout.timed = "seconds" in self.method.needs()
            rollout.under_way.shares, rollout.under_way.dates_rows = settings.shares, settings.max_staleness > 0
            rollout.crews, rollout.interrupt_every = settings.max_staleness + 1, interrupt_every(settings, rollout)
            return rollout

        return made

    def bring_judge(self) -> None:
        """Finds who compares answers, if the settings name somebody, and tries it."""
        from upslope.rollout.judges import make_judge

        spec, settings = self.settings.judge, self.settings
        if not spec:
            return
        if not any(getattr(part, "takes_judge", False) for _, part in self.method.parts()):
            raise UserError(
                f"--judge {spec}: {self.method.name} compares no answers. Leave it out, take a method that does, such as sppo, or "
                "let win rates take the place of the reward: --set 'data=Compared(pays=True)'."
            )
        self.judge = make_judge(spec, settings.judge_failures, settings.device)
        for rollout in (self.rollout, *self.stage_rollouts.values()):
            rollout.judge = self.judge

    def keep_in(self, folder: RunFolder) -> None:
        """A judge's verdicts, so that nothing is asked twice; those of the policy hold for one step only. And what the start says
        of rows that nobody samples."""
        if self.judge is not None and self.judge.ask is not None:
            self.judge.verdicts.keep_in(folder.path / VERDICTS)
        plan = self.method.rollout
        if plan is not None and not plan.samples and not self.stage_rollouts:  # a stage may begin at another policy
            self.rollout.reference_cache = ReferenceCache(folder.path / REFERENCES)

    @contextmanager
    def with_workers(self, folder: RunFolder, trusted: bool) -> Iterator[None]:
        """With workers, a pool of them; with those that score, a store behind whoever samples."""
        settings = self.settings
        with ExitStack() as open_pools:
            if settings.workers:
                self.pool = worker_pool(settings, folder.path, trusted, self.policy.device)
                open_pools.callback(self.pool.close)
                for rollout in (self.rollout, *self.stage_rollouts.values()):
                    rollout.under_way.pool = self.pool
            if settings.reward_workers:
                score_apart(self, folder.path, trusted, open_pools)
            yield

    def allocate(self, learner: Learner) -> None:
        """The optimiser's moments and, where this process samples, keys and values with their graphs."""
        from upslope.rollout.engines.torch_engine import TorchEngine

        if self.policy.device.type != "cuda":
            return
        current: Any = getattr(learner, "learner", learner)  # of the stage that it is in
        allocate_moments(current.optimizer)
        if isinstance(engine := self.rollout.engine, TorchEngine) and not self.settings.workers:
            allocate_cache(engine, self.sizes.work.longest, self.settings.samples_per_task, self.sampling)

    def faults(self) -> Counter[str]:
        return self.pool.faults if self.pool is not None else Counter()

    def settle_reward(self, given: tuple[str, ...]) -> tuple[str, ...]:
        """What is chosen, and what an audit finds, is said."""
        from upslope.rewards.audit import audit

        if self.method.scorer is not None:  # nothing is answered
            return given
        if isinstance(getattr(self.task, "reward", None), UndecidedReward):
            given = (self._choose_reward(),)
        paid = getattr(self.task, "reward", None)
        if self.settings.audit == "on" and not isinstance(paid, NoReward) and not any(reward_models(paid)):
            name = ", ".join(given) or f"of {self.task.name}"
            for remark in audit(self.task).remarks(name):
                warnings.warn(Remark(remark), stacklevel=2)
        return given

    def _choose_reward(self) -> str:
        """Looks at some sampled answers and puts the task under the reward that suits them."""
        from upslope.rewards import choosing
        from upslope.rollout.engines.torch_engine import TorchEngine
        from upslope.rollout.evaluation import answers_of

        drawn = self.task.sample(choosing.SAMPLED, "train", numpy_generator(choosing.SEED, "problems"))
        problems = list({problem.prompt: problem for problem in drawn}.values())
        numbers = uniforms((len(problems), self.tokens), choosing.SEED, "answers")
        engine = self.rollout.engine
        self.rollout.sync()
        answer = answers_of(engine if getattr(engine, "follows", True) else TorchEngine(self.policy), self.policy)
        with torch_threads(self.settings.threads or 1):
            responses, _ = answer([problem.model_input for problem in problems], 1, self.sampling, numbers)
        chosen = choosing.choose(problems, responses)
        warnings.warn(Remark(chosen.remark()), stacklevel=2)
        self.task = self.task.rewarded(load_reward(chosen.reward))
        for rollout in (self.rollout, *self.stage_rollouts.values()):
            rollout.task = self.task
        return chosen.reward

    def check_memory(self) -> None:
        """Refuses settings whose steps would take more memory than there is, as far as that can be foreseen."""
        self.sizes.check()

    def warm_start(self, progress: Callable[[int, float], None]) -> None:
        from upslope.learners.warm_start import warm_start

        settings = self.settings
        if settings.warm_start:
            warm_start(self.policy, self.task, settings.warm_start, max_tokens=self.tokens, seed=settings.seed, progress=progress)

    def save_start(self, files: CheckpointWriter) -> None:
        """Weights that were read and not warm-started are in files already; those are linked."""
        if self.settings.warm_start:
            self.policy.save(files)
        else:
            self.policy.save_as_loaded(files)

    def evaluate(self, progress: Progress | None = None) -> JsonDict:
        return evaluated(self, progress)

    def record_step(self, folder: RunFolder, learner: Learner, step: int, seconds: float) -> None:
        """The step's problems, where they were chosen or made, and its rollouts token by token; of rollouts steps are left out
        where some would take more than `RECORDING` of the time."""
        from upslope.learners.problem_record import problem_record
        from upslope.learners.rollout_record import rollout_record

        self.stepping += seconds
        if learner.traced is not None and (problems := problem_record(learner.traced.sampled, step)) is not None:
            folder.append(PROBLEMS, problems)
        everything, last = self.settings.record == "all", step == self.settings.steps
        if learner.traced is None or not (everything or last or self.recording <= FREE_RECORDING + RECORDING * self.stepping):
            return
        began = time.perf_counter()
        folder.write_rollouts(*rollout_record(learner.traced, self.token_text, step, everything))
        self.recording += time.perf_counter() - began

    def record_evaluation(self, folder: RunFolder, step: int) -> None:
        """Nothing: the steps have shown how it answers."""
