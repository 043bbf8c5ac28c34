"""DQN: the value of every choice, and the best of them taken."""

from upslope.methods.control.sac import sac
from upslope.objective.critics import BestChoice, QFunction
from upslope.objective.data.stored import UniformReplay
from upslope.objective.networks import MLPEnsemble
from upslope.policies.control.networks import GreedyChoice
from upslope.rollout.acting import EpsilonGreedy, UniformFirst
from upslope.types import Paper

dqn = sac.derive(
    name="dqn",
    parent="",
    paper=Paper("Human-level control through deep reinforcement learning", year=2015),
    differs="no actor: a critic with a value for each choice, of which the best is taken, sometimes any",
    formula=r"L = huber(r + γ max_a' Q̄(s', a') - Q(s, a)),   ε-greedy,   Q̄ a copy renewed every C updates",
    use_when="actions are a few choices and their values can be told apart",
    data=UniformReplay(capacity=100_000),
    policy=GreedyChoice(of="q"),
    surrogate=None,
    models={
        "q": QFunction(network=MLPEnsemble(members=1, hidden=(64, 64)), target=BestChoice(), error="huber", lag=1.0, lag_every=250)
    },
    acting=(UniformFirst(steps=1000), EpsilonGreedy()),
    on={
        "control": {
            "settings.lr": 1e-3,
            "settings.minibatch": 64,
            "settings.updates_per_step": 500,
            "settings.grad_clip": 10.0,
        },
        "control-images": {
            "models.q.network.hidden": (),
            "acting.0.steps": 10_000,
            "acting.1.end": 0.01,
            "settings.lr": 1e-4,
            "settings.adam_eps": 1.5e-4,
            "settings.minibatch": 32,
            "settings.envs": 8,
            "settings.updates_per_step": 2000,
            "settings.steps": 125,
            "settings.eval_problems": 10,
        },
    },
    notes="The paper's network is for images; for vectors there are two layers of 64 and an update every second step. From images "
    "it is the paper's, and sizes and rates are those of Stable-Baselines3's zoo for Atari, with 8 environments and a random start "
    "of 10,000 steps for the zoo's 1 and 100,000, and a million steps in place of ten. Adam's eps is Rainbow's, 1.5e-4: with 1e-8 "
    "four of five runs of Pong learned nothing: behind their convolutions all images came to look alike. The paper cuts rewards "
    "to [-1, 1]: --task gym:ALE/Breakout-v5:clip_rewards=true with --test-task gym:ALE/Breakout-v5 trains so and judges by the "
    "score.",
)

double_dqn = dqn.derive(
    name="double-dqn",
    paper=Paper("Deep Reinforcement Learning with Double Q-learning", arxiv="1509.06461", year=2016),
    differs="the critic that learns chooses the next action, its older copy values it",
    formula=r"y = r + γ Q̄(s', argmax_a' Q(s', a'))",
    use_when="values of dqn rise above what returns show",
    models={
        "q": QFunction(
            network=MLPEnsemble(members=1, hidden=(64, 64)), target=BestChoice(double=True), error="huber", lag=1.0, lag_every=250
        )
    },
)
