"""DPO on revised answers that were made likely first."""

from upslope.methods.preference.dpo import dpo
from upslope.objective.advantage.constant import ConstantAdvantage
from upslope.objective.aggregate import TokenMean
from upslope.objective.ratio import NoRatio
from upslope.objective.stages import Stage
from upslope.objective.surrogate import LogLikelihood
from upslope.objective.surrogate.revision import RevisionPreference
from upslope.rollout.revisions import FromRevisions
from upslope.types import Paper

opa_dpo = dpo.derive(
    name="opa-dpo",
    paper=Paper(
        "Mitigating Hallucinations in Large Vision-Language Models via DPO: On-Policy Data Hold the Key",
        arxiv="2501.09695",
        year=2025,
    ),
    differs="true and revised answers are imitated first, so that the reference finds them likely; then mistakes weigh by their "
    "severity, an answer must become less likely where evidence is hidden, and an anchor holds the better answers up",
    formula=r"opa:  L = -mean_t log π(y_true, y_rev);  then L = D(y_true, y_gen) + D_s(y_rev, y_gen) + 0.2 [D(y_true|x, y_true|x~) "
    r"+ D_v(y_rev|x, y_rev|x~)] - Σ log σ(β log π(y)/π_opa(y))",
    use_when="answers were corrected by somebody who also said how bad each mistake is, and the corrections are nothing the model "
    "would say by itself: DPO alone only lowers what it said",
    stages=Stage(
        name="opa",
        share=0.5,
        rollout=FromRevisions(imitate=True),
        advantage=ConstantAdvantage(),
        ratio=NoRatio(),
        surrogate=LogLikelihood(),
        aggregate=TokenMean(),
    ),
    rollout=FromRevisions(),
    surrogate=RevisionPreference(),
    notes="A line has a prompt, an `answer` (the true one) and `revisions`: the generated answer in pieces, such as sentences, "
    "each with its `revised` text, a `severity` from 1 (worst) to 4 (right) and an `error`, of which `perception` is the one that "
    "evidence would have prevented; `evidence` may name the part of the prompt that is hidden, all but its ends if not. "
    "Embedded tasks make their own: one or two characters off. The paper hides parts of an image, here tokens of the prompt "
    "are hidden. The anchor is over the better side of all four comparisons, as in the released code, but pushes none of them "
    "down; surrogate.form=token is the released form, with the logistic at every position (padding left out) and the anchor "
    "against revised answers. The paper's first stage is one pass with LoRA and its second four epochs; half of the run for "
    "each is ours (stages.opa.share). Where nothing was revised, both comparisons of the revised answer are left out.",
)
