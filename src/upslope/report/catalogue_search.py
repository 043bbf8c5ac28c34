"""Finding methods by a sentence: what it asks for, which methods answer it, and how far their claims held.

The board and the site ask the same in a browser (``catalogue_search.js``), where there may be no Python: both rank alike.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass

from upslope.plain_data import JsonDict

FILLER = """
a an and are as at be been but by can cannot do does for from get give given got has have how i if in into is it its like
make many me method methods more most much must my need needs no not of off on one or our out over policy should so some than
that the their them then there these they this to too train training use used using very want was we what when where which
while who why will with without would you your
"""
"""Words of a question that say nothing."""
LEFT_OVER = """
reward rewards rollout rollouts answer answers sample samples task tasks problem problems model data run runs update updates learn
learning
"""
"""Words that are left of the sentence of a situation, and count only where no situation was understood."""
FIELDS = {"name": 9, "family": 4, "slots": 4, "needs": 4, "title": 3, "use_when": 3, "differs": 2, "parent": 2, "arxiv": 6}
"""Where a word of the question counts, and how much."""
WORD = re.compile(r"[^\W_](?:[\w@+.-]*[\w@])?")
AT_HOME = {
    "actor-critic": ("an environment to act in: games, robots, control", "a log or dataset instead of an environment"),
    "preference": ("pairs and preferences", "no reward, no right answers"),
}
"""Learners and families that are for some situations: where none of these is asked for, their methods answer half as well."""
SURE = 0.5
"""Evidence from which on a method that answers all of a question is enough."""
RULES: JsonDict = {
    "filler": FILLER.split(), "left_over": LEFT_OVER.split(), "fields": FIELDS, "at_home": AT_HOME, "sure": SURE,
}  # fmt: skip
"""The same for a browser, as part of the catalogue."""
_NOTHING, _LEFT = frozenset(FILLER.split()), frozenset(LEFT_OVER.split())


@dataclass(frozen=True)
class Asked:
    """A question as the situations that it describes, and the words that are left."""

    situations: tuple[str, ...]
    words: tuple[str, ...]
    said: frozenset[str] = frozenset()
    """All words of the question: one of them may be the name of a method."""


@dataclass(frozen=True)
class Answer:
    """A method that answers: how well, and which situations it is for."""

    method: JsonDict
    score: float
    matched: tuple[str, ...]


def understand(question: str, situations: list[JsonDict]) -> Asked:
    """What a sentence asks for.

    Args:
        situations: Of `upslope.report.catalogue.catalogue_records`.
    """
    asked = question.lower().replace("’", "'").replace("`", "'")
    rest, meant = asked, []
    for each in situations:
        said = re.compile(rf"(?<![\w-])(?:{each['asked']})(?![\w-])")
        if each["name"] in rest or said.search(asked):
            meant.append(each["name"])
            rest = said.sub(" ", rest.replace(each["name"], " "))
    words = [word for word in WORD.findall(rest) if word not in _NOTHING and not (meant and word in _LEFT)]
    return Asked(tuple(meant), tuple(dict.fromkeys(words)), frozenset(WORD.findall(asked)))


def answers(records: JsonDict, question: str) -> list[Answer]:
    """The methods that answer a question, best first.

    Args:
        records: `upslope.report.catalogue.catalogue_records`.
    """
    asked = understand(question, records["situations"])
    found = [_answer(method, asked) for method in records["methods"]]
    return _covering(sorted((each for each in found if each.score > 0), key=lambda each: (-each.score, each.method["name"])))


def _covering(found: list[Answer]) -> list[Answer]:
    """The best one first, then for every situation that it is not for the best one that is, then the others."""
    front, covered = found[:1], {name for each in found[:1] for name in each.matched}
    for each in found[1:]:
        if not set(each.matched) <= covered:
            front.append(each)
            covered |= set(each.matched)
    return front + [each for each in found if each not in front]


def evidence(claim: JsonDict) -> float:
    """How far a method's claims held here: near 1 where many statements did, near 0 where many did not, 0.5 where nothing was
    measured. A statement that came out the other way counts twice."""
    return (claim["held"] + 1) / (claim["of"] + claim["refuted"] + 2)


def _answer(method: JsonDict, asked: Asked) -> Answer:
    matched = tuple(name for name in asked.situations if name in method["situations"])
    words = [worth for worth in (_word_score(method, word) for word in asked.words) if worth]
    named = 1000.0 if method["name"] in asked.said else 0.0
    homes = [AT_HOME[kind] for kind in (method["learner"], method["family"]) if kind in AT_HOME]
    elsewhere = any(not set(asked.situations) & set(home) for home in homes)
    score = (32 * len(matched) + 20 * len(words) + sum(words)) * evidence(method["claim"]) * (0.5 if elsewhere else 1.0)
    return Answer(method, score + named, matched)


def _word_score(method: JsonDict, word: str) -> float:
    best = 0.0
    for field, worth in FIELDS.items():
        value = method[field]
        text = (" ".join(value) if isinstance(value, list) else str(value)).lower()
        at = text.find(_stem(word))
        if at >= 0:
            begins = at == 0 or not text[at - 1].isalnum()
            best = max(best, worth if begins else worth / 3 if len(word) > 3 else 0)
    return best


def _stem(word: str) -> str:
    """A word without the ending that only grammar asks for."""
    return re.sub(r"(?:ies|es|s|ed|ing)$", "", word) if len(word) > 4 else word


def together(records: JsonDict, question: str) -> tuple[str, str] | None:
    """Two methods that answer a question together where no method whose claims held answers all of it: what they change does not
    collide, so that ``upslope train FIRST+SECOND`` runs."""
    wanted = understand(question, records["situations"]).situations
    found = answers(records, question)
    whole = [each for each in found if len(each.matched) == len(wanted)]
    if len(wanted) < 2 or any(evidence(each.method["claim"]) >= SURE for each in whole):
        return None
    single = {*records["single"], "models", "rollout"}
    partly = sorted((each for each in found if each not in whole), key=lambda each: (-each.score, each.method["name"]))

    def fits(one: JsonDict, other: JsonDict) -> bool:
        alike = one["learner"] == other["learner"] == "policy-gradient" and one["name"] != other["name"]
        alike = alike and (one["family"] == "preference") == (other["family"] == "preference")
        return bool(alike and one["parent"] and other["parent"]) and not {*one["slots"]} & {*other["slots"]} & single

    for second in partly:
        left = set(wanted) - set(second.matched)
        for first in partly:
            if left <= set(first.matched) and fits(first.method, second.method):
                return first.method["name"], second.method["name"]
    return None


def comparison(records: JsonDict, question: str) -> str:
    """A command that compares the best answer with the plain method, both in the situation that was asked for; empty where there is
    nothing plainer than the answer."""
    found = answers(records, question)
    if not found:
        return ""
    best = found[0].method
    plain = "grpo" if best["family"] == "rlvr" else best["parent"]
    if not plain or plain == best["name"]:
        return ""
    command = best["commands"][-1].replace(f"upslope train {best['name']}", f"upslope compare {best['name']} {plain}", 1)
    setting = ""
    if best["family"] == "rlvr":
        setting = "".join(
            f" {each['setting']}" for each in records["situations"] if each["setting"] and each["name"] in found[0].matched
        )
    return f"{command} --seeds 5{setting}"


def answer_text(records: JsonDict, question: str, width: int = 0, most: int = 6) -> str:
    """The answer to a question for a terminal."""
    asked, found = understand(question, records["situations"]), answers(records, question)
    if not found:
        names = "; ".join(each["name"] for each in records["situations"])
        return f"No method answers that. Situations that methods speak of: {names}."
    lines = [f"for: {' · '.join(asked.situations)}" if asked.situations else f"for: {' '.join(asked.words)}"]
    lines += ["(claims were measured on small tasks, not on yours: 'upslope show NAME' lists what was)", ""]
    for each in found[:most]:
        method = each.method
        about = f"for {', '.join(each.matched)}; " if len(asked.situations) > 1 and each.matched else ""
        lines.append(f"{method['name']:<18} {about}{claim_words(method['claim'])}")
        lines += textwrap.wrap(f"Use it when {method['use_when']}", width or 100, initial_indent="    ", subsequent_indent="    ")
    if len(found) > most:
        others = [each.method["name"] for each in found[most:]]
        lines.append(f"and {len(others)} more: {', '.join(others[:12])}{', ...' if len(others) > 12 else ''}")
    best = found[0].method["name"]
    lines += ["", f"formula and claim:  upslope show {best}", f"to try it:          {found[0].method['commands'][-1]}"]
    if beside := comparison(records, question):
        lines.append(f"beside the plain:   {beside}")
    if both := together(records, question):
        lines.append(f"two for all of it:  upslope train {'+'.join(both)} (not measured together)")
    return "\n".join(lines)


def claim_words(claim: JsonDict) -> str:
    """How a method's claim came out, in a few words."""
    if not claim["of"]:
        return "its claim was not measured yet"
    refuted = f", {claim['refuted']} came out the other way" if claim["refuted"] else ""
    return f"{claim['held']} of {claim['of']} statements held{refuted}"
