"""VPPO's claim on a tiny language model: where most tokens are filler, learning from those that depend on the input is faster."""

from __future__ import annotations

from typing import Any

from harness import Claim, Statement, TextBed, Variant, average, extra, final, main

BLIND = {"references.blind.share": 1.0, "references.blind.keep_first": 2, "filter.refill": False}
"""Everything between the opening (the start token and the task's letter) and the closing sign is hidden: the letters to reverse."""
END, SPEED = "final reward", "mean reward"
ON_LETTERS, LETTERS = "share of dependence on the letters", "share of letters among tokens"


def where_it_depends(run: Any) -> dict[str, float]:
    """How much of all dependence lies on the letters that were asked for, and how many of the tokens they are."""
    import torch
    from filled_task import FILLER

    from upslope.objective.functional.dependence import dependence
    from upslope.objective.references import Blinded
    from upslope.types import RolloutRequest

    rollout = run.components.rollout
    rollout.assign(RolloutRequest(10_000))
    rows = rollout.take(10_000)
    with torch.no_grad():
        blind = run.policy.evaluate(Blinded(share=1.0, keep_first=2).sees(rows))
        rows = rows.replace(proximal=run.policy.evaluate(rows), reference={"blind": blind})
    place = torch.arange(rows.sampled.shape[1])
    letters = rows.sampled * ((place >= len(FILLER)) & (place < len(FILLER) + 2))
    score = dependence(rows, "blind")
    total = (score * rows.sampled).sum().clamp_min(1e-9)
    return {"on letters": float((score * letters).sum() / total), "letters": float(letters.sum() / rows.sampled.sum())}


CLAIM = Claim(
    name="vppo",
    title="vppo where most tokens are filler",
    about="""The paper says that learning from the tokens that depend on the input is faster where most tokens do not. A 2-layer
    character model answers "rab=" with "answer: ba", of which only the last two letters are checked: four fifths of the
    characters are the same whatever was asked. The blind policy does not see the letters. It is warm-started to a greedy
    accuracy of 0.8 and sampled at temperature 0.5; 16 problems x 8 samples a step, two updates each; groups without signal are
    dropped and not replaced.""",
    variants={
        "dapo": Variant("dapo", {"filter.refill": False}),
        "vppo": Variant("vppo", BLIND),
    },
    bed=TextBed("bench/claims/filled_task.py:FilledReverse", "tiny:width=64", after=where_it_depends),
    settings={
        "steps": 30,
        "tasks_per_step": 16,
        "updates_per_step": 2,
        "lr": 3e-4,
        "warm_start": 0.8,
        "temperature": 0.5,
        "watch_kl": False,
        "eval_problems": 200,
    },
    measures={
        END: final("reward"),
        SPEED: average("reward"),
        "held-out greedy accuracy after": lambda result: result.after,
        ON_LETTERS: extra("on letters"),
        LETTERS: extra("letters"),
    },
    statements=[
        Statement("vppo", "mean reward over the run above that of", "dapo", SPEED),
        Statement("vppo", "final reward above that of", "dapo", END),
        Statement("vppo", "share of dependence on the letters above", 0.5, ON_LETTERS),
    ],
    seeds=5,
    chosen="""On seed 100. With a longer phrase (starts at 0.7 and 0.85), or from 0.5 at other rates and temperatures, the
    parent lost what it had or did not learn; from 0.8 it holds and moves little at 3e-4 (0.37 to 0.38, vppo 0.38 to 0.39), and
    at 1e-3 it collapsed to 0.06, where vppo without its price on entropy stayed at 0.27. The calmer rate was taken, before
    other seeds were seen.""",
    curves={"reward": "training reward", "learning": "share of decisions learning"},
)

if __name__ == "__main__":
    main(CLAIM)
