"""CAP-CPT's claim: the deeper a rulebook's conditions are nested, the more it helps to read the rulebook before its examples."""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from harness import Cell, Claim, Result, Statement, Variant, main

DEPTHS = (1, 2, 3, 4)
FALL = "accuracy lost from depth 1 to depth 4"
DEEPEST = "accuracy at depth 4"
SAVED = "share of the prompt's tokens saved, depth 4"


def rulebook(depth: int, rules: int = 16) -> str:
    """Questions about the deepest conditions of a rulebook alone."""
    return f"rulebook:rules={rules},depth={depth},level={4 if depth > 1 else 3}"


@dataclasses.dataclass(frozen=True)
class RulebookBed:
    """A run for each depth; ``extra`` has the accuracy of each on questions that no example answered, and what a prompt saves."""

    model: str = "tiny:width=128"

    def train(self, cell: Cell) -> Result:
        import upslope as up
        from upslope.tasks import load_task

        began, told, metrics = time.perf_counter(), dict[str, float](), []
        for depth in DEPTHS:
            task = load_task(rulebook(depth))
            with tempfile.TemporaryDirectory() as folder:
                run = up.train(cell.method, rulebook(depth), model=self.model, knobs=cell.knobs, seed=cell.seed,
                               out=Path(folder) / "run", **cell.settings)  # fmt: skip
                told[f"depth {depth}"] = run.summary["score_after"]
                metrics += [record | {f"loss_{depth}": record["loss"]} for record in run.metrics] if depth == DEPTHS[-1] else []
                spelled = [run.policy.tokenizer(text, verbose=False).input_ids for text in (f"{task.text()}\nna1234=", "na1234=")]  # type: ignore[attr-defined]
                told[f"saved {depth}"] = 1 - len(spelled[1]) / len(spelled[0])
        return Result(cell, 0.0, told[f"depth {DEPTHS[-1]}"], time.perf_counter() - began, metrics, told)


def accuracy(depth: int) -> Callable[[Result], float]:
    return lambda result: result.extra[f"depth {depth}"]


CLAIM = Claim(
    name="cap-cpt",
    title="cap-cpt on rulebooks of growing depth",
    about="""The paper reports that fine-tuning on examples alone loses accuracy the deeper the conditions of a policy document are
    nested, and that continued pre-training on texts about each kind of rule, before a light fine-tuning, loses less; the document
    then no longer stands in the prompt.

    Here a rulebook (`rulebook`) has sixteen rules of nested conditions over digits, of depth 1 to 4, and 96 of their questions are
    answered as examples; accuracy is that on other questions, by greedy answers, without the rulebook. Documents say each rule and
    every branch of it, and answer no held-out question. Both sides make as many steps: cap-cpt reads in the first half and has the
    other half for the examples. The model is small and untrained, so that it brings no skill of reading rules: what it knows of
    them it learned here. The last variant reads a quarter of the run.""",
    variants={
        "sft": Variant("sft"),
        "cap-cpt": Variant("cap-cpt"),
        "a quarter of reading": Variant("cap-cpt", {"stages.cpt.share": 0.25}),
    },
    bed=RulebookBed(),
    settings={
        "steps": 200,
        "lr": 2e-3,
        "tasks_per_step": 32,
        "train_problems": 96,
        "warm_start": 0.0,
        "eval_problems": 200,
        "checkpoint_every": 1000,
        "record": "none",
    },
    measures={
        **{f"accuracy at depth {depth}": accuracy(depth) for depth in DEPTHS},
        FALL: lambda result: result.extra["depth 1"] - result.extra["depth 4"],
        SAVED: lambda result: result.extra["saved 4"],
    },
    statements=[
        Statement("sft", "accuracy lost from depth 1 to depth 4 above", 0.0, FALL),
        Statement("cap-cpt", "accuracy lost from depth 1 to depth 4 below that of", "sft", FALL, higher=False),
        Statement("cap-cpt", "accuracy at depth 4 above that of", "sft", DEEPEST),
        Statement("cap-cpt", "accuracy at depth 2 above that of", "sft", "accuracy at depth 2"),
    ],
    curves={"loss": "loss at depth 4 (documents first, then answers)"},
    chosen="""8 to 20 rules, 64 and 200 examples, 120 to 240 steps and lr 2e-3 were tried with seed 100 at depths 1 to 3: neither
    side was clearly ahead. 96 examples of 16 rules leave room at every depth, and enough held-out questions at depth 1.""",
    seeds=5,
)

if __name__ == "__main__":
    main(CLAIM)
