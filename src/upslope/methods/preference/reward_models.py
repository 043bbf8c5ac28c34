"""Reward models from pairs: one that scores an answer, and one that reads two and says which is better."""

from upslope.methods.preference.dpo import dpo
from upslope.objective.models.score import AnswerScore, PairScore
from upslope.objective.ratio.scores import HeadScore
from upslope.objective.surrogate.scores import ScorePreference
from upslope.rollout.both_orders import FromBothOrders
from upslope.types import Paper

bt_rm = dpo.derive(
    name="bt-rm",
    paper=Paper("Training language models to follow instructions with human feedback", arxiv="2203.02155", year=2022),
    differs="no policy: a head reads an answer to its end and scores it, and of two answers the chosen one should score higher",
    formula=r"L = -log σ(r(x, y_w) - r(x, y_l) - margin) + c (r(x, y_w) + r(x, y_l))²",
    use_when="a reward is to be learned from pairs once and then used: by any method (--reward rm:RUN), to rank samples "
    "(eval --best-of 8 --by rm:RUN), or as a judge",
    ratio=HeadScore(),
    surrogate=ScorePreference(),
    models={"score": AnswerScore()},
    notes="The model is Bradley and Terry's of 1952. All weights learn, or the adapters and the head (--lora); the head reads the "
    "last layer when the whole answer stands before it, where most trainers read the end token itself. c is models.score.center, "
    "the margin surrogate.margin, one for all pairs. The score of the run is the share of held-out pairs it ranks right. Only "
    "differences of scores of one prompt mean anything. What goes round, as in rock, paper, scissors, no score expresses: pair-rm "
    "does.",
)

pair_rm = bt_rm.derive(
    name="pair-rm",
    paper=Paper(
        "LLM-Blender: Ensembling Large Language Models with Pairwise Ranking and Generative Fusion", arxiv="2306.02561", year=2023
    ),
    differs="the head reads both answers, one behind the other, and what it says of the other order is subtracted",
    formula=r"P(a ≻ b) = σ(s(x, a, b) - s(x, b, a)),   L = -log P(y_w ≻ y_l)",
    use_when="answers are best judged beside each other, or preferences may go round; ranking K answers takes K(K-1) readings",
    rollout=FromBothOrders(),
    models={"score": PairScore()},
    notes="The paper trains an encoder with a head on each answer's marker; here the model of the run reads the prompt and both "
    "answers, and a linear head stands at the end. As a reward an answer gets its tournament score: the mean over the other "
    "answers to the prompt of s(x, a, b) - s(x, b, a). A group of one has none.",
)
