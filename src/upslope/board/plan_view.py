"""The method and the settings of a run, for people.

All of it is made from the tables of ``run.toml``. No part is built from them and nothing they name is imported: to look at a run
must never run what came with it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from upslope.board import safe_files
from upslope.board.mathml import formula_mathml
from upslope.board.plan_file import parse_plan
from upslope.methods import catalogue
from upslope.plain_data import JsonDict
from upslope.policies.control.networks import in_domains
from upslope.report.describe import read_docstring
from upslope.runtime.data_files import shown_name
from upslope.runtime.method_file import method_table, modern_table
from upslope.runtime.reward_text import RewardText
from upslope.runtime.settings import Settings
from upslope.types import NAMED_SLOTS, SLOTS, Method
from upslope.types.part_index import class_name, own_parts

NEUTRAL = frozenset(
    {"seed", "threads", "device", "eval_every", "eval_problems", "checkpoint_every", "keep_checkpoints", "samples_logged"}
    | {"record", "audit", "watch_kl", "env_workers", "recompute", "speculate"}
)
"""Settings in which two seeds of the same experiment may differ."""


def read_whole_plan(root: Path, parts: tuple[str, ...]) -> JsonDict:
    """All of ``run.toml``, parts by today's names."""
    with safe_files.folder(root, *parts) as at:
        plan = parse_plan(safe_files.read(at, "run.toml").decode("utf-8"))
    method = modern_table(plan["method"])
    if plan["domain"] == "control" and isinstance(method, dict):
        method = {"policy": modern_table({"part": "policy.MLP"}), **method}  # older runs had no other and did not say so
    return plan | {"method": method}


# -- the method ------------------------------------------------------------------------------------------------------------


def catalogued(name: str) -> JsonDict:
    """A method of the catalogue as the page shows it."""
    return method_view(method_table(catalogue()[name]), ())


def method_view(table: JsonDict, domains: tuple[str, ...]) -> JsonDict:
    """A method's table as the page shows it, its slots against those of its parent in the same kind of task."""
    parent = catalogue().get(_text(table.get("parent")))
    was = _settled_table(parent, domains) if parent is not None else None
    paper = table.get("paper") if isinstance(table.get("paper"), dict) else {}
    assert isinstance(paper, dict)
    formula = _text(table.get("formula"))
    return {
        **{key: _text(table.get(key)) for key in ("name", "parent", "family", "differs", "use_when", "notes")},
        "paper": {"title": _text(paper.get("title")), "year": paper.get("year"), "arxiv": _text(paper.get("arxiv"))},
        "formula": formula,
        "formula_mathml": formula_mathml(formula),
        "slots": [row for slot in SLOTS if (row := _slot_row(slot, table, was))],
    }


def _slot_row(slot: str, table: JsonDict, was: JsonDict | None) -> JsonDict | None:
    here, before = table.get(slot), None if was is None else was.get(slot)
    if not here and not before:
        return None
    return {
        "slot": slot,
        "value": slot_text(slot, here),
        "was": "" if was is None else slot_text(slot, before),
        "changed": was is not None and (here or None) != (before or None),
        "about": " ".join(about for part in _parts(slot, here) if (about := _about(part))),
    }


def _settled_table(method: Method, domains: tuple[str, ...]) -> JsonDict:
    return method_table(in_domains(method, *domains))


def slot_text(slot: str, value: object) -> str:
    """What fills a slot, as `Method` itself would print it."""
    if not value:
        return "none"
    if slot in NAMED_SLOTS and isinstance(value, dict):
        return " + ".join(f"{name}: {_part_text(part)}" for name, part in value.items())
    return " + ".join(map(_part_text, value)) if isinstance(value, list) else _part_text(value)


def _part_text(value: object) -> str:
    if isinstance(value, dict):
        knobs = ", ".join(f"{name}={_part_text(item)}" for name, item in value.items() if name != "part")
        return f"{class_name(_text(value.get('part')))}({knobs})"
    if isinstance(value, list):
        return f"({', '.join(map(_part_text, value))}{',' if len(value) == 1 else ''})"
    return f"{value:g}" if isinstance(value, float) else repr(value)


def _parts(slot: str, value: object) -> list[object]:
    if isinstance(value, list):
        return value
    if isinstance(value, dict):
        return list(value.values()) if slot in NAMED_SLOTS else [value]
    return []


def _about(part: object) -> str:
    return _abouts().get(_text(part.get("part")), "") if isinstance(part, dict) else ""


@cache
def _abouts() -> dict[str, str]:
    """The first words of every part's docstring, by the name ``run.toml`` gives it."""
    return {name: read_docstring(kind)[0] for name, kind in own_parts().items()}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


# -- what differs ----------------------------------------------------------------------------------------------------------


def changed_knobs(plan: JsonDict) -> JsonDict:
    """Knobs in which a run's method is not the one of that name in the catalogue, by path; empty if it is not in there."""
    table = plan["method"]
    known = catalogue().get(_text(table.get("name")))
    if known is None:
        return {}
    flat = _flat({slot: table.get(slot) for slot in SLOTS})
    found = []
    for kinds in _domains(plan):
        usual = _flat({slot: _settled_table(known, kinds).get(slot) for slot in SLOTS})
        found.append({path: value for path, value in flat.items() if path not in usual or usual[path] != value})
    return min(found, key=len)


def _domains(plan: JsonDict) -> list[tuple[str, ...]]:
    """Kinds of task a plan may be for; what a controller sees and does does not stand in it."""
    if plan["domain"] == "text":
        return [("text",)]
    kinds = (("control", "control-continuous"), ("control", "control-discrete"))
    return [*kinds, *((*kind, "control-images") for kind in kinds)]


def method_of_run(plan: JsonDict) -> JsonDict:
    """The method of a run as the page shows it."""
    views = [method_view(plan["method"], kinds) for kinds in _domains(plan)]
    return min(views, key=lambda view: sum(row["changed"] for row in view["slots"]))


def _flat(value: object, path: str = "") -> JsonDict:
    if isinstance(value, list) and value and not any(isinstance(item, (dict, list)) for item in value):
        return {path: ",".join(map(str, value))} if path else {}  # one knob, as --set takes it
    if isinstance(value, list):
        # Inside a slot that holds one part its position need not be said.
        value = {"": value[0]} if len(value) == 1 else {str(position): item for position, item in enumerate(value)}
    if not isinstance(value, dict):
        return {} if value is None or not path else {path: value}
    found: JsonDict = {}
    for name, item in value.items():
        found |= _flat(item, ".".join(filter(None, (path, str(name)))))
    return found


def experiment(plan: JsonDict) -> tuple[str, JsonDict]:
    """What a run tries, without its seed: the method's name, and all that sets it apart from other runs of that method."""
    apart: JsonDict = {"task": shown_name(_text(plan.get("task"))), "model": plan.get("model"), "reward": ", ".join(_rewards(plan))}
    apart |= {name: value for name, value in plan["settings"].items() if name not in NEUTRAL}
    if _text(plan["method"].get("name")) in catalogue():
        apart |= changed_knobs(plan)
    else:
        apart |= _flat({slot: plan["method"].get(slot) for slot in SLOTS})
    return _text(plan["method"].get("name")), apart


# -- the command -----------------------------------------------------------------------------------------------------------


def settings_view(plan: JsonDict, folder: Path | None = None) -> JsonDict:
    """Settings and surroundings of a run, and the command that would start it again; ``folder`` is the run's own."""
    kept = ("task", "model", "reward", "test_data", "build", "settings")
    names = {key: shown_name(_text(plan.get(key))) for key in ("task", "test_data")}
    found = (
        {key: plan.get(key, "") for key in kept} | names | {"reward": ", ".join(_rewards(plan)), "command": command(plan, folder)}
    )
    return found | ({"dataset": dataset_view(plan)} if plan.get("dataset") else {})


def dataset_view(plan: JsonDict) -> JsonDict:
    """The dataset that a run learned from, as ``run.toml`` describes it; only its name and digest where that says no more."""
    card = plan.get("dataset_card")
    told = card if isinstance(card, dict) else {}
    keys = ("name", "env", "recipe", "origin", "episodes", "decisions", "random", "expert", "returns")
    found = {key: told[key] for key in keys if told.get(key) not in (None, "")}
    return {"source": shown_name(_text(plan["dataset"])), "digest": _text(plan.get("dataset_digest"))[:12], "card": found}


def command(plan: JsonDict, folder: Path | None = None) -> str:
    """The run as one would type it: what it would be anyway is left out.

    What is somebody's own is taken from the run's ``folder``, which keeps all of it: its method from ``run.toml``, its code from
    ``code``. The files that it was once made of may be gone, or another's by now.
    """
    code, own = Path(folder or ".") / "code", folder is not None and _is_own(plan["method"])
    method = str(Path(folder or ".") / "run.toml") if own else _text(plan["method"].get("name"))
    words = ["upslope", "train", method, "--task", _kept_code(_source(plan, "task"), code)]
    if plan["domain"] == "text" and plan.get("model") != "tiny":
        words += ["--model", _text(plan.get("model"))]
    words += [word for text in _rewards(plan) for word in ("--reward", _kept_reward(text, code))]
    if plan.get("test_data"):
        words += ["--test-data", _source(plan, "test_data")]
    if plan.get("dataset"):
        words += ["--data", _source(plan, "dataset")]
    for tracker in plan.get("trackers", []):
        words += ["--tracker", str(tracker)]
    for path, value in () if own else _settings_of_parts(plan):
        words += ["--set", f"{path}={value}"]
    for name, value in plan["settings"].items():
        if not _is_usual(plan, name, value):
            value = _kept_code(value, code) if name == "test_task" else value
            flag = name.replace("_", "-")
            words += [f"--{'' if value else 'no-'}{flag}"] if isinstance(value, bool) else [f"--{flag}", str(value)]
    return " ".join(map(shlex.quote, words))


def _is_own(method: JsonDict) -> bool:
    """Whether no name and no ``--set`` says it: a method that the catalogue does not have, or parts from somebody's file."""
    return _text(method.get("name")) not in catalogue() or any(".py:" in part for part in _part_names(method))


def _part_names(value: object) -> Iterator[str]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        if key == "part":
            yield _text(item)
        else:
            yield from _part_names(item)


def _kept_code(text: object, code: Path) -> str:
    """``NAME-DIGEST/file.py:thing@DIGEST`` as the command line takes it: the run's own copy."""
    where, at, digest = _text(text).rpartition("@")
    return str(code / where) if at and ".py:" in where and digest.isalnum() else _text(text)


def _kept_reward(text: str, code: Path) -> str:
    reward = RewardText.parse(text)
    return str(reward.named(_kept_code(reward.name, code))) if reward.is_code else text


def _source(plan: JsonDict, key: str) -> str:
    """A file as one would give it again: where the run's copy was made from."""
    name, sources = _text(plan.get(key)), plan.get("sources")
    return _text(sources.get(name, name)) if isinstance(sources, dict) else name


def _rewards(plan: JsonDict) -> list[str]:
    """A run's rewards; earlier versions wrote one as a text."""
    given = plan.get("reward")
    return [text for text in (given if isinstance(given, list) else [given]) if isinstance(text, str) and text]


def _settings_of_parts(plan: JsonDict) -> list[tuple[str, str]]:
    """What ``--set`` makes the catalogue's method of a run's: knobs, and whole slots where other parts stand in them."""
    changed, table = changed_knobs(plan), plan["method"]
    known = catalogue().get(_text(table.get("name")))
    usual = {} if known is None else _settled_table(known, _domains(plan)[0])
    found = []
    for slot in SLOTS if known is not None else ():
        here, before = _flat({slot: table.get(slot)}), _flat({slot: usual.get(slot)})
        if _only_parts(here) == _only_parts(before):
            found += [(path, str(value)) for path, value in changed.items() if path in here]
        elif slot in NAMED_SLOTS and isinstance(table.get(slot), dict):
            now, old = table[slot], usual.get(slot) or {}
            found += [(f"{slot}.{name}", "none") for name in old if name not in now]
            found += [(f"{slot}.{name}", _set_text(part)) for name, part in now.items() if part != old.get(name)]
        else:
            found.append((slot, _set_text(table.get(slot))))
    return found


def _only_parts(flat: JsonDict) -> JsonDict:
    return {path: value for path, value in flat.items() if path.rpartition(".")[2] == "part"}


def _set_text(value: object) -> str:
    """A part or a stack of them as ``--set`` reads it."""
    if isinstance(value, list):
        return ", ".join(map(_set_text, value)) or "none"
    if not isinstance(value, dict):
        return "none" if value is None else repr(value)
    fields = ", ".join(
        f"{name}={f'({_set_text(item)},)' if isinstance(item, list) and item else '()' if item == [] else _set_text(item)}"
        for name, item in value.items()
        if name != "part"
    )
    return f"{class_name(_text(value.get('part')))}({fields})"


def _is_usual(plan: JsonDict, name: str, value: object) -> bool:
    """Whether a setting would be the same if nobody had said it."""
    if name == "device":
        return value == "auto" or plan["domain"] == "control" or (value == "cpu" and _is_tiny(plan))
    if name == "max_tokens":
        return plan["domain"] == "control" or value == _tokens_of(_text(plan.get("task")))
    usual = [
        getattr(Settings().resolved(plan["domain"], _text(plan.get("model")), continuous=continuous), name, None)
        for continuous in ((False,) if plan["domain"] == "text" else (False, True))
    ]
    return all(each == value for each in usual)


def _is_tiny(plan: JsonDict) -> bool:
    return _text(plan.get("model")).split(":")[0] == "tiny"


@cache
def _tokens_of(task: str) -> int | None:
    """The longest answer a task of ours asks for, by its bare name; nobody else's code or numbers are loaded to find out."""
    from upslope.tasks import FAMILY

    return FAMILY[task]().max_tokens if task in FAMILY else None
