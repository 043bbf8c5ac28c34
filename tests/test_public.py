"""What is public stands in a list: a name, a flag or a file that comes or goes changes fixtures/public.toml, never by accident."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import tomli_w

import upslope as up
from upslope import methods, parts
from upslope.cli.parsers import parsers
from upslope.methods import catalogue, find, own_methods
from upslope.types import SLOT_CLASSES, slots
from upslope.types.part_index import own_parts

ROOT = Path(__file__).resolve().parent.parent
LIST = Path(__file__).parent / "fixtures" / "public.toml"
MODULES = ("upslope", "upslope.methods", "upslope.parts", "upslope.types", "upslope.tasks", "upslope.rewards", "upslope.testing")
RENAMED = {"Remembers": "Stateful", "Outside": "DataContext", "Through": "ModelView", "Seen": "ProbeInputs"}


def names() -> dict[str, list[str]]:
    """By module: all it declares, and what it gives on demand."""
    found = {name: sorted(importlib.import_module(name).__all__) for name in MODULES}
    found["upslope.methods"] += sorted(name.replace("-", "_") for name in own_methods())
    return found


def flags() -> dict[str, list[str]]:
    """By command: its words and flags."""
    return {
        name: sorted(word for action in parser._actions for word in action.option_strings or [str(action.metavar)])
        for name, parser in parsers()[1].items()
    }


def files(folder: Path) -> list[str]:
    """What a run wrote, with N for steps."""
    found = {re.sub(r"\d{4,}", "N", file.relative_to(folder).as_posix()) for file in folder.rglob("*") if file.is_file()}
    return sorted(found - {"process.json", "run.lock"})  # of the process that is at work


def test_nothing_public_comes_or_goes_by_accident(tmp_path: Path):
    small = dict(
        task="reverse:length=2", model="tiny:layers=1,width=16", steps=1, tasks_per_step=2, warm_start=0.0, eval_problems=2
    )
    run = up.train("grpo", **small, record="all", out=tmp_path / "run")
    found = {"names": names(), "command line": flags(), "run folder": {"files": files(run.path)}}
    listed = tomllib.loads(LIST.read_text(encoding="utf-8")) if LIST.exists() else {}
    if found != listed:
        (tmp_path / "public.toml").write_text(tomli_w.dumps(found), encoding="utf-8")
    assert found == listed, (
        f"what is public has changed. If that is meant: docs/public.md says how it may, CHANGELOG.md names it, and "
        f"{tmp_path / 'public.toml'} is the new {LIST.relative_to(ROOT)}."
    )


def test_the_page_names_what_the_list_has():
    page = (ROOT / "docs" / "public.md").read_text(encoding="utf-8")
    listed = tomllib.loads(LIST.read_text(encoding="utf-8"))
    assert set(re.findall(r"^\| `(upslope[\w.]*)` \|", page, re.M)) == set(listed["names"])
    assert {name for name in re.findall(r"`([\w.]+\.(?:toml|jsonl|json|html))`", page)} == {
        name for name in listed["run folder"]["files"] if "/" not in name
    }


# -- methods by name -------------------------------------------------------------------------------------------------------


def test_every_method_is_imported_by_its_name():
    for name, method in own_methods().items():
        assert getattr(methods, name.replace("-", "_")) is method is find(name)
    identifiers = {name.replace("-", "_") for name in own_methods()}
    assert identifiers <= set(dir(methods)) and len(identifiers) == len(own_methods()) == len(catalogue())
    assert identifiers.isdisjoint(vars(methods)), "a method is hidden behind a function or a folder of that name"
    assert methods.rlvr.grpo.grpo is methods.grpo, "folders are what they were"


def test_an_unknown_method_or_part_is_answered_with_the_nearest():
    with pytest.raises(ImportError, match=r"cannot import name 'dappo' from 'upslope.methods'"):
        from upslope.methods import dappo  # noqa: F401
    with pytest.raises(AttributeError, match=r"no method 'dappo'\. Did you mean 'dapo'"):
        methods.dappo  # noqa: B018
    with pytest.raises(ImportError, match=r"cannot import name 'TokenMaen' from 'upslope.parts'"):
        from upslope.parts import TokenMaen  # noqa: F401
    with pytest.raises(AttributeError, match=r"no part 'TokenMaen'\. Did you mean 'TokenMean'"):
        parts.TokenMaen  # noqa: B018
    assert not hasattr(methods, "dappo") and not hasattr(parts, "TokenMaen")


# -- parts in one place ----------------------------------------------------------------------------------------------------


def test_every_part_and_every_slot_class_is_in_parts():
    from upslope.parts import Advantage, GroupBaseline, PessimisticClip

    assert issubclass(GroupBaseline, Advantage) and PessimisticClip is own_parts()["surrogate.PessimisticClip"]
    assert {part.__name__ for part in own_parts().values()} <= set(dir(parts))
    assert {kind.__name__ for kind in SLOT_CLASSES.values()} <= set(dir(parts)) and parts.Stateful is slots.Stateful
    assert all(getattr(parts, name).__name__ in (name, "dict", "Dict") or name in ("Notes", "State") for name in dir(parts))
    assert parts.__all__ == dir(parts)


def test_type_checkers_see_the_parts_that_are_there():
    stub = (ROOT / "src" / "upslope" / "parts.pyi").read_text(encoding="utf-8")
    found = dict(reversed(pair) for pair in re.findall(r"^from (\S+) import (\w+) as \2$", stub, re.M))
    assert sorted(found) == dir(parts)
    for name, module in found.items():
        assert getattr(importlib.import_module(module), name) is getattr(parts, name)


def test_importing_the_doors_loads_no_part():
    code = "import sys, upslope.parts, upslope.methods; sys.exit(any(m.startswith('upslope.methods.rlvr') for m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], timeout=300).returncode == 0


# -- names on their way out ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("old", RENAMED)
def test_an_old_name_warns_and_is_the_new_one(old: str):
    base = importlib.import_module("upslope.objective.base")
    with pytest.warns(
        DeprecationWarning, match=rf"upslope\.objective\.base\.{old} is now upslope\.objective\.base\.{RENAMED[old]};"
    ) as told:
        assert getattr(base, old) is getattr(base, RENAMED[old])
    assert told[0].filename == __file__, "the warning must point at whoever used the name"


def test_other_names_of_that_module_are_not_there():
    base = importlib.import_module("upslope.objective.base")
    assert not hasattr(base, "Nothing") and set(RENAMED).isdisjoint(base.__all__)


def test_the_rule_stands_where_people_look():
    for page in ("CHANGELOG.md", "CONTRIBUTING.md"):
        text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
        assert "one minor version" in text and "docs/public.md" in text, page
    assert all(old in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8") for old in RENAMED)
