"""Papers that measure data and train nothing: ``upslope data describe`` gives their numbers."""

from upslope.types import Method, Paper

saco_tq = Method(
    name="saco-tq",
    family="offline",
    learner="measure",
    paper=Paper("A Dataset Perspective on Offline Reinforcement Learning", arxiv="2111.04714", year=2021),
    differs="says of a dataset how good its episodes are and how much of what can be done they show; it trains nothing",
    formula=r"TQ = (mean return - random) / (expert - random),   SACo = unique (s, a) / those of a reference of the same size",
    use_when="choosing a method for a dataset: imitation where TQ is high, off-policy learning where SACo is",
    notes="`upslope data describe NAME --reference NAME2` gives both. Numbers that are not whole fall into 100 bins a dimension; "
    "above a million pairs they are counted by HyperLogLog. The thresholds of the advice are ours.",
)

il_data_quality = Method(
    name="il-data-quality",
    family="offline",
    learner="measure",
    paper=Paper("Data Quality in Imitation Learning", arxiv="2306.02437", year=2023),
    differs="says of demonstrations how consistent their actions are, how noisy what follows, how close together their states lie; "
    "it trains nothing",
    formula=r"action variance = mean over states of Var[a | near s],   transition noise = mean of Var[s' - s | near (s, a)],   "
    r"state similarity = mean number of neighbours",
    use_when="demonstrations of several people are to be imitated",
    notes="`upslope data describe NAME` gives all three, by nearest neighbours; the paper defines them by divergences, the "
    "estimators are ours.",
)
