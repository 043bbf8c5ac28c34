"""PoRo's claim: answers written with the rulebook in the prompt, learned without it, bring the rulebook into the weights faster."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import torch
from harness import ON_ONE_CORE, ROOT, Cell, Claim, Statement, TextBed, Variant, average, final, main, steps_until

from upslope.methods import find
from upslope.policies import load_language_model
from upslope.rollout.text_rows import written_rows
from upslope.runtime.files import whole_folder
from upslope.runtime.seeding import numpy_generator
from upslope.runtime.threads import use_threads
from upslope.tasks import load_task

MODEL = os.path.relpath(ROOT / "build" / "rulebook-reader")
SHOWN = 0.75
"""Share of the prompts that show the rule while the model is made; the others teach it what an answer looks like."""
HALFWAY = 0.5
NO_KL = {"regularize.weight": 0.0}
READ_GRPO, READ_PORO = (find(name).derive(name=f"reading, then {name}", stages=find("cap-cpt").stages) for name in ("grpo", "poro"))


def rulebook(seed: int) -> str:
    """Twenty rules of one condition each: a digit decides for one of two of eight actions."""
    return f"rulebook:rules=20,depth=1,level=3,seed={seed}"


def make_rulebook_reader(folder: Path, steps: int = 200) -> None:
    """Trains the model on questions about rulebooks other than the claim's, once; a folder that is there is left alone."""
    if folder.exists():
        return
    use_threads(1)
    policy = load_language_model("tiny:width=128", 0)
    optimizer = torch.optim.AdamW(policy.trainable()["policy"], lr=2e-3, betas=(0.9, 0.95))
    for step in range(steps):
        random, books = numpy_generator(0, "rulebook reader", step), [load_task(rulebook(1 + 4 * step + n)) for n in range(4)]
        asked = [(book, problem) for book in books for problem in book.sample(16, "train", random)]
        prompts = [
            book.guided(problem, "", "\n".join(problem.documents)) if random.random() < SHOWN else problem.model_input
            for book, problem in asked
        ]
        rows = written_rows(policy, prompts, [problem.answer for _, problem in asked])
        loss = -(policy.evaluate(rows).logp * rows.sampled).sum() / rows.sampled.sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.trainable()["policy"], 1.0)
        optimizer.step()
    with whole_folder(folder) as draft:
        policy.save(draft)


class Rulebook(Claim):
    """A claim whose model is made before the first run."""

    def cells(self, seeds: Iterable[int], steps: int = 0) -> list[Cell]:
        make_rulebook_reader(Path(MODEL))
        return super().cells(seeds, steps)


CLAIM = Rulebook(
    name="poro",
    title="poro learns a rulebook by heart",
    about="""The paper lets half of a group answer with the policy document in the prompt and learns all answers without it, after
    continued pre-training on the document. It claims that the rules are then known without the document sooner, and better, than
    with reinforcement alone.

    Here a rulebook has twenty rules of one condition (`ca:(0>4?f:d)`), which the prompt does not show: a digit decides for one of
    two of eight actions. A small model has learned to read rules from questions about other rulebooks: with the rule in the prompt
    about half of its samples are right, without it one in eight. Every variant samples 16 answers to a problem, poro 8 of them with
    the rule. Reward and accuracy are those of answers without the rule; held-out questions ask for other digits of the same rules.
    The last two variants read the documents for the first half of their steps, as cap-cpt does, and so sample half as much. The KL
    term of all is off.""",
    variants={
        "grpo": Variant("grpo", NO_KL),
        "poro": Variant("poro", NO_KL, {"samples_per_task": 8}),
        "reading, then grpo": Variant(READ_GRPO, NO_KL),
        "reading, then poro": Variant(READ_PORO, NO_KL, {"samples_per_task": 8}),
    },
    bed=TextBed(rulebook(0), MODEL),
    settings={
        "steps": 150,
        "lr": 3e-4,
        "tasks_per_step": 32,
        "samples_per_task": 16,
        "warm_start": 0.0,
        "eval_problems": 100,
        "checkpoint_every": 1000,
        "watch_kl": False,
        "record": "none",
        **ON_ONE_CORE,
    },
    measures={
        "accuracy without the rule": lambda result: result.after,
        "mean reward without the rule": average("reward"),
        "final reward without the rule": final("reward"),
        f"steps until {HALFWAY} of the answers are right": steps_until("reward", HALFWAY),
        "answers sampled in a step": average("samples"),
    },
    statements=[
        Statement("poro", "mean reward without the rule above that of", "grpo", "mean reward without the rule"),
        Statement("poro", "accuracy without the rule above that of", "grpo", "accuracy without the rule"),
        Statement(
            "reading, then poro", "accuracy without the rule above that of", "reading, then grpo", "accuracy without the rule"
        ),
        Statement("reading, then poro", "accuracy without the rule above that of", "poro", "accuracy without the rule"),
    ],
    curves={"reward": "reward without the rule", "entropy": "entropy"},
    seeds=5,
    chosen="""The start was trained until it read rules (200 steps). Steps and learning rate are estimates: nothing was run to the
    end, and nothing was varied.""",
)

if __name__ == "__main__":
    main(CLAIM)
