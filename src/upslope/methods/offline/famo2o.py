"""FamO2O: IQL for every coefficient between imitation and improvement, and a model that chooses one for each state."""

from upslope.methods.offline.iql import iql
from upslope.objective.critics import ExpectileValue, QFunction, StateValue
from upslope.objective.models.balance import Balance, BalanceTemperature
from upslope.objective.surrogate.improvement import FamilyWeighted
from upslope.policies.control.networks import FamilyOfPolicies
from upslope.types import Paper

famo2o = iql.derive(
    name="famo2o",
    paper=Paper(
        "Train Once, Get a Family: State-Adaptive Balances for Offline-to-Online Reinforcement Learning",
        arxiv="2310.17966",
        year=2023,
    ),
    differs="one policy for every beta of an interval, and a model that chooses for each state the one of highest value",
    formula=r"L_π = -min(e^{βA}, 100) log π(a|s, β),   β ~ U[lo, hi] on data alone, β ~ π_b(·|s) once it acts;   "
    r"L_b = T log π_b(β|s) - min_i Q̄_i(s, a~π(·|s, β))",
    use_when="the data are good in some states and poor in others",
    policy=FamilyOfPolicies(),
    surrogate=FamilyWeighted(),
    models={
        "q": QFunction(target=StateValue(), order=-2, weight=0.5),
        "value": ExpectileValue(expectile=0.8),
        "balance": Balance(),
        "balance_temperature": BalanceTemperature(),
    },
    notes="The interval is 1 to 5 and the expectile 0.8, the paper's for locomotion; mazes have 8 to 14 "
    "(models.balance.network.high, then .low) and models.value.expectile=0.9. The balance is fitted behind the policy, to the one "
    "that the "
    "update left; in the released code, to the one before it. To act, the coefficient is the certain one of a state; actions are "
    "drawn while it explores and the likeliest when it is judged. With both ends of the interval the same it is iql.",
)
