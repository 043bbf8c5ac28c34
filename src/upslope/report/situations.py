"""Situations that people describe when they look for a method, and which methods say that they are for them.

A method's own sentence, `Method.use_when`, is the source: a situation only says how that sentence is worded and how people ask for
it. Both are regular expressions that Python and JavaScript read alike; they are matched against lower-case text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from upslope.methods import catalogue
from upslope.types import Method


@dataclass(frozen=True)
class Situation:
    """A situation by its name, how people ask for it, how methods speak of it, and the setting that makes a plain run be in it."""

    name: str
    asked: str
    told: str
    setting: str = ""

    def of(self, method: Method) -> bool:
        """Whether a method is for this situation."""
        return re.search(self.told, method.use_when.lower()) is not None


SITUATIONS = (
    Situation(
        "noisy rewards",
        r"nois\w*|unreliable|wrong labels?|mislabel\w*|ambiguous|inconsistent rewards?",
        r"rewards are noisy|wrong or ambiguous labels|not the size of the reward",
    ),
    Situation(
        "rollouts are reused",
        r"re-?us\w*|several updates|many updates|multiple (?:updates|epochs|passes)|many (?:passes|epochs)|same rollouts|again",
        r"reused|several updates|many updates|many passes|more than once|learned from many times|more is to be learned from each"
        r"|used once more|learns from each many times",
        setting="--passes 2",
    ),
    Situation(
        "stale or off-policy rollouts",
        r"off-?\s?policy|stale\w*|async\w*|lag\w*|delayed|behind the (?:learner|policy)|mismatch|replay",
        r"stale|rollouts are old|answers are old|old or given|come late|runs ahead|do not agree|others', or",
    ),
    Situation(
        "long answers",
        r"(?:answers?|responses?|outputs?|completions?) (?:are|is|get|become) (?:very |too |so )?long"
        r"|long(?:er)? (?:answers?|responses?|completions?|outputs?|reasoning|chains?|cot)|chain.of.thought|length|long context",
        r"answers are long|differ(?:ent)? (?:much )?in length|many times longer|different lengths?|thinking longer",
    ),
    Situation(
        "rewards are rare, whole groups fail",
        r"sparse|rare\w*|all wrong|zero reward|too hard|hard (?:problems|tasks)|never (?:solved?|right)|fail\w*|hopeless",
        r"all wrong|groups are wrong|groups fail|never solved|never or always solved|always or never solved"
        r"|solved so rarely|cannot solve"
        r"|rarely right|seldom|hopeless|hardly ever|only says when it is done|far more failures|many groups",
    ),
    Situation(
        "easy and hard tasks are mixed",
        r"difficult\w*|curricul\w*|easy|mixed tasks|which (?:problems|tasks)|data mix\w*",
        r"very easy and very hard|solved to hopeless|success rates of the tasks differ|different difficulty|which problems are hard"
        r"|too few or too easy|tell how hard|tells how hard|always or never solved|never or always solved"
        r"|one skill should come|solved so rarely",
    ),
    Situation(
        "entropy collapses, diversity matters",
        r"entropy|collaps\w*|divers\w*|explor\w*|pass@\w*|mode collapse|narrow\w*",
        r"entropy (?:collapses|falls)|pass@k|diversity|makes all answers alike|must still explore|rare tokens"
        r"|several right answers",
    ),
    Situation(
        "training is unstable",
        r"unstable|instabil\w*|diverg\w*|blows? up|spik\w*|crash\w*|explod\w*|high learning rate|drift\w*",
        r"unstable|collapse\b|high learning rate|learning rate is high|jumps between|will not settle|drift|runs away|extreme ratios"
        r"|collapses early",
    ),
    Situation(
        "solutions or demonstrations are at hand",
        r"demonstration\w*|(?<!of )expert\w*|solutions?|imitat\w*|sft|supervised|teacher|distil\w*|hints?",
        r"solutions are|demonstration|answers are known|final answers are known|there are good answers|hints"
        r"|is to be learned by heart|rulebook"
        r"|supervised learning has",
    ),
    Situation(
        "pairs and preferences",
        r"preferenc\w*|pairs?|chosen|rejected|rlhf|human feedback|thumbs|compar\w*|rank\w*|judge",
        r"\bpairs\b|preferences may|thumbs|can be compared but|compared fairly|compare answers|rejected answers"
        r"|judged beside|were corrected",
    ),
    Situation(
        "no reward, no right answers",
        r"no (?:reward|verifier|answers?|labels?|ground truth)|unlabel\w*|without (?:a )?(?:reward|answers?|labels?)"
        r"|self.supervis\w*",
        r"without answers|nothing can score|nothing to compare|no two answers|not scored|ttrl",
    ),
    Situation(
        "a log or dataset instead of an environment",
        r"offline|log(?:s|ged)?\b|dataset\w*|recorded|batch rl|no simulator",
        r"the data (?:are|leave)|in the data|dataset|data first|recorded|recordings|older logs",
    ),
    Situation(
        "an environment to act in: games, robots, control",
        r"robot\w*|control|gym\w*|environment|simulat\w*|continuous|torque|atari|game",
        r"the environment|robot|simulator|actions are|learned: control|a certain policy|temperature will not|values of dqn",
    ),
    Situation(
        "several steps, agents, tool calls",
        r"agent\w*|tool\w*|multi-?\s?(?:step|turn)|function call\w*|programs?|code",
        r"several steps|tool|calls|chain of calls|programs|gui|grounding",
    ),
    Situation(
        "sampling is what costs",
        r"expensive|slow (?:sampling|environment|rollouts?)|cost\w*|cheap\w*|few samples|sample.efficien\w*|budget",
        r"what costs|too dear|is too dear|costs more|slow environments|sampling is too|cost too much|waits for them",
    ),
    Situation(
        "memory is short",
        r"memory|small gpu|out of memory|oom|vram",
        r"into memory|costs? too much|too long to stand",
    ),
    Situation(
        "a mixture of experts",
        r"moe|mixture of experts|experts",
        r"mixture of experts|has experts",
    ),
    Situation(
        "the policy must stay near its start",
        r"forget\w*|stay near|kl\b|drift from|reference model|alignment tax|reward hack\w*|gam(?:e|ed|ing)\b",
        r"near its start|known distance|must not lead far|must not cost|can be gamed|tear away",
    ),
)
"""In the order in which they are offered."""


def situations_of(method: Method) -> list[str]:
    """The names of the situations that a method is for; one that is "as for" another is for those of the other too."""
    other = re.match(r"as for ([\w-]+)", method.use_when)
    kin = catalogue().get(other[1]) if other else None
    return [each.name for each in SITUATIONS if each.of(method) or (kin is not None and each.of(kin))]
