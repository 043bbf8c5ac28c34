"""The catalogue as one piece of data: what the site's front page and the board's page of methods show, sort, filter and search.

Everything comes from the methods themselves. Commands to try a method with and what its claims came to are measured or drawn where
the documents are written; ``make docs`` leaves them in ``methods/catalogue.json``, which goes with the package.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable
from functools import cache
from importlib import resources

from upslope.methods import catalogue
from upslope.plain_data import JsonDict
from upslope.report.catalogue_search import RULES, claim_words
from upslope.report.describe import changes, slots
from upslope.report.situations import SITUATIONS, situations_of
from upslope.tasks import list_tasks
from upslope.types import SINGLE_SLOTS, SLOTS, Method

CRITICS = frozenset({"q", "value", "median", "prompt_value"})
"""Names of learned models that say what a state, an action or a prompt is worth."""
OTHER_MODELS = frozenset(
    {"temperature", "score", "pair_source", "step_source", "balance", "balance_temperature", "neighbours", "vae"}
)
"""Names of the other learned models, which nobody would call a critic."""
OF_TASK = {
    "solutions": "demonstrations",
    "answers": "answers",
    "pairs": "pairs",
    "labels": "labels",
    "revisions": "revisions",
    "hints": "hints",
    "documents": "documents",
    "categories": "categories",
    "several categories": "categories",
    "variants": "variants",
    "comparisons": "judge",
}
"""What parts ask of a task, in the words of the catalogue."""
NEEDS = {
    "critic": "a learned value of states, actions or prompts",
    "reference": "a second, frozen or older copy of the policy to compare with",
    "groups": "several answers to each task",
    "demonstrations": "solutions that somebody else wrote, or recorded episodes of somebody good",
    "answers": "the right final answer of each problem, to be shown and not only checked",
    "labels": "answers marked as good or bad one by one",
    "pairs": "pairs of a better and a worse answer",
    "judge": "something that compares two answers",
    "dataset": "recorded experience: a log, not only an environment",
    "hints": "hints that come with the problems",
    "documents": "texts to be learned",
    "categories": "problems in named kinds",
    "revisions": "corrected answers",
    "variants": "a task that can make other versions of a problem",
}
"""What a method can need, and what that means."""
VERDICTS = {
    "held": "every statement that was measured held",
    "partly": "some statements held, others did not or could not be shown",
    "not shown": "no statement could be shown at this scale, none was refuted",
    "did not hold": "no statement held, and at least one came out the other way",
    "not measured": "nothing was measured yet",
}
"""How a method's claim came out here, best first."""


@cache
def written_beside() -> JsonDict:
    """What ``make docs`` wrote: ``commands`` by method, ``claims`` by page."""
    file = resources.files("upslope.methods") / "catalogue.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {"commands": {}, "claims": {}}


def catalogue_records() -> JsonDict:
    """Every method with every field, and the words that fields are made of."""
    methods = [record(method) for method in catalogue().values()]
    pages = {page for each in methods for page in each["claim"]["pages"]}
    claims = {
        name: {"title": page["title"], "picture": page["picture"], "curve": page.get("curve")}
        for name, page in written_beside()["claims"].items()
        if name in pages
    }
    return {
        "methods": methods,
        "claims": claims,
        "families": sorted({each["family"] for each in methods}),
        "slots": [slot for slot in SLOTS if any(slot in each["slots"] for each in methods)],
        "needs": {need: told for need, told in NEEDS.items() if any(need in each["needs"] for each in methods)},
        "verdicts": VERDICTS,
        "situations": [{"name": each.name, "asked": each.asked, "setting": each.setting} for each in SITUATIONS],
        "rules": RULES,
        "single": list(SINGLE_SLOTS),
        "tasks": [each.name for each in list_tasks()],
    }


def record(method: Method) -> JsonDict:
    """A method as a row of the catalogue."""
    changed = [slot for slot in changes(method) if slot in SLOTS]
    return {
        "name": method.name,
        "family": method.family,
        "year": method.paper.year,
        "title": method.paper.title,
        "arxiv": method.paper.arxiv,
        "parent": method.parent,
        "learner": method.learner,
        "differs": method.differs,
        "use_when": method.use_when,
        "formula": method.formula,
        "slots": changed or list(slots(method)),
        "needs": needs_of(method),
        "situations": situations_of(method),
        "claim": claim_of(method.name),
        "commands": commands_of(method),
    }


def needs_of(method: Method) -> list[str]:
    """What a method needs beside a task and a policy, in the order of `NEEDS`."""
    columns = method.needs()
    samples = method.rollout is None or method.rollout.samples
    asked = {word for _, part in method.parts() for word in part.needs_of_task}
    needed = {OF_TASK[word] for word in asked}
    found = {
        "critic": any(name in CRITICS for name, _ in method.models),
        "reference": any(column.startswith("reference.") for column in columns),
        "groups": samples and method.learner == "policy-gradient" and "group" in columns,
        "judge": any(getattr(part, "takes_judge", False) for _, part in method.parts()),
        "dataset": reads_dataset(method),
    }
    return [need for need in NEEDS if found.get(need) or need in needed]


def reads_dataset(method: Method) -> bool:
    """Whether it begins with recorded experience."""
    return method.offline or any(getattr(part, "needs_dataset", False) for _, part in method.parts())


def commands_of(method: Method) -> list[str]:
    """What to type to try a method; of a method of another package only what is true of any."""
    written = written_beside()["commands"].get(method.name)
    return list(written) if written else [f"upslope train {method.name} --task TASK"]


# -- claims ----------------------------------------------------------------------------------------------------------------


def claim_of(name: str) -> JsonDict:
    """How a method's claim came out: the verdict, how many statements, the pages, and the lines themselves."""
    pages, lines = [], []
    for page, told in written_beside()["claims"].items():
        said = [(variant, line) for variant, of in told["judged"].items() for line in of if _is(name, variant)]
        if said or page == name:
            pages.append(page)
        lines += [{"page": page, "variant": variant if variant != name else "", **line} for variant, line in said]
    pages.sort(key=lambda page: page != name)
    plain = [line["verdict"] for line in lines if not line["variant"]]
    return {
        "verdict": verdict(plain),
        "held": plain.count("held"),
        "refuted": plain.count("did not hold"),
        "of": len(plain),
        "pages": pages,
        "lines": lines,
    }


def claim_text(name: str, width: int = 100) -> str:
    """How a method's claim came out, statement by statement, for a terminal; empty where nothing was measured."""
    claim = claim_of(name)
    own = [line for line in claim["lines"] if not line["variant"]]
    if not own:
        return ""
    pages = ", ".join(f"docs/claims/{page}.md" for page in dict.fromkeys(line["page"] for line in own))
    lines = [f"its claim on small tasks, in {pages}: {claim_words(claim)}"]
    for line in own:
        where = f" ({line['where']})" if line["where"] not in ("", "in this setting") else ""
        told = f"{line['verdict']}: {line['words']}{where}" + (f"; {line['numbers']}" if line["numbers"] else "")
        lines += textwrap.wrap(told, width, initial_indent="  ", subsequent_indent="    ")
    return "\n".join(lines)


def _is(name: str, variant: str) -> bool:
    """Whether a line of a claim is about a method, by itself, with something added or with a setting."""
    return variant == name or variant.startswith((f"{name}+", f"{name} "))


def verdict(verdicts: Iterable[str]) -> str:
    """One word for several."""
    found = list(verdicts)
    if not found:
        return "not measured"
    if "held" in found:
        return "held" if set(found) == {"held"} else "partly"
    return "did not hold" if "did not hold" in found else "not shown"
