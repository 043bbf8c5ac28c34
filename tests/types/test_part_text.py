"""Whole parts set by path: ``--set 'surrogate=PessimisticClip(low=0.1)'``, read as data, with errors that say what would fit."""

from __future__ import annotations

import math
import re
import shlex
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from places import ROOT

import upslope as up
from upslope.board.control import train_words
from upslope.board.plan_view import command
from upslope.cli import main
from upslope.errors import MethodError
from upslope.methods import catalogue, find
from upslope.objective.aggregate import TokenMean
from upslope.objective.filter import DropConstantGroups
from upslope.objective.models import ValueFunction
from upslope.objective.ratio import ConstantMix, EntropyMix, Hybrid, SequenceRatio, TokenRatio
from upslope.objective.references import Snapshot
from upslope.objective.regularize import EntropyBonus, ReferenceKL
from upslope.objective.surrogate.clip import Bounds, BranchClip, ClippedWeight, PessimisticClip
from upslope.objective.weight import TopEntropy
from upslope.policies.control.networks import in_domains
from upslope.report.compare.cells import Question
from upslope.report.compare.command import _grid
from upslope.runtime.method_file import dump_method, load_method
from upslope.types import SLOTS, Method, Part
from upslope.types.part_index import own_parts
from upslope.types.part_text import as_text, read_parts

grpo, dhpo, ppo = find("grpo"), find("dhpo"), find("ppo")


def after(method: Method, *words: str) -> Method:
    """The method after ``--set`` of these words."""
    return method.with_knobs(dict(word.split("=", 1) for word in words))


@pytest.mark.parametrize(
    ("method", "words", "slot", "value"),
    [
        (grpo, ["aggregate=TokenMean"], "aggregate", TokenMean()),
        (grpo, ["aggregate=TokenMean()"], "aggregate", TokenMean()),
        (grpo, ["aggregate=aggregate.TokenMean"], "aggregate", TokenMean()),
        (grpo, ["surrogate=PessimisticClip(low=0.1)"], "surrogate", PessimisticClip(low=0.1)),
        (grpo, ["surrogate=PessimisticClip(low=1e-1, high=1, dual=inf)"], "surrogate", PessimisticClip(0.1, 1.0, math.inf)),
        (grpo, ["surrogate=ClippedWeight", "surrogate.high=0.3"], "surrogate", ClippedWeight(high=0.3)),
        (grpo, ["ratio=SequenceRatio", "ratio.gradient=sequence"], "ratio", SequenceRatio(gradient="sequence")),
        (
            grpo,
            ["ratio=Hybrid(token=TokenRatio(against='behavior'), mix=ConstantMix(share=0.25))"],
            "ratio",
            Hybrid(token=TokenRatio(against="behavior"), mix=ConstantMix(0.25)),
        ),
        (grpo, ["ratio=Hybrid(token=TokenRatio(against=behavior))"], "ratio", Hybrid(token=TokenRatio(against="behavior"))),
        (dhpo, ["ratio.mix=EntropyMix"], "ratio", Hybrid(mix=EntropyMix())),
        (dhpo, ["surrogate.token=Bounds(low=0.1)", "surrogate.token.high=0.3"], "surrogate", BranchClip(token=Bounds(0.1, 0.3))),
        (grpo, ["weight=TopEntropy"], "weight", (TopEntropy(),)),
        (grpo, ["weight=TopEntropy", "weight.fraction=0.3"], "weight", (TopEntropy(fraction=0.3),)),
        (grpo, ["weight.0=TopEntropy(fraction=0.3)"], "weight", (TopEntropy(fraction=0.3),)),
        (grpo, ["regularize=none"], "regularize", ()),
        (grpo, ["regularize=EntropyBonus(weight=0.01),ReferenceKL"], "regularize", (EntropyBonus(0.01), ReferenceKL())),
        (grpo, ["regularize.1=EntropyBonus(weight=0.01)"], "regularize", (*grpo.regularize, EntropyBonus(0.01))),
        (grpo, ["regularize.0=EntropyBonus(weight=0.01)"], "regularize", (EntropyBonus(0.01),)),
        (grpo, ["regularize.1=EntropyBonus", "regularize.0=none"], "regularize", (EntropyBonus(),)),
        (find("dapo"), ["filter=none"], "filter", ()),
        (find("dapo"), ["filter=DropConstantGroups(refill=false)"], "filter", (DropConstantGroups(refill=False),)),
        (grpo, ["references.old=Snapshot(every=2)"], "references", (("old", Snapshot(every=2)),)),
        (grpo, ["references.old=Snapshot", "references.old.every=3"], "references", (("old", Snapshot(every=3)),)),
        (grpo, ["models.value=ValueFunction(weight=0.25)"], "models", (("value", ValueFunction(weight=0.25)),)),
        (ppo, ["models.value=ValueFunction(clip=0.2)"], "models", (("value", ValueFunction(clip=0.2)),)),
        (ppo, ["models=ValueFunction(clip=0.2)"], "models", (("value", ValueFunction(clip=0.2)),)),
        (ppo, ["models.value=none"], "models", ()),
        (ppo, ["models=none"], "models", ()),
        (find("t-ppo"), ["rollout=none"], "rollout", None),
    ],
)  # fmt: skip
def test_a_whole_part_is_set(method: Method, words: list[str], slot: str, value: Any):
    changed = after(method, *words)
    assert getattr(changed, slot) == value and set(changed.diff(method)) <= {slot}
    assert load_method(dump_method(changed)) == changed


def test_a_part_may_be_given_as_itself():
    assert grpo.with_knobs({"surrogate": PessimisticClip(low=0.1)}).surrogate == PessimisticClip(low=0.1)
    assert grpo.with_knobs({"regularize": [EntropyBonus(), ReferenceKL()]}).regularize == (EntropyBonus(), ReferenceKL())
    assert grpo.with_knobs({"regularize": None}).regularize == ()
    with pytest.raises(MethodError, match=r"TokenMean is an aggregate, which does not fit there. What fits: AdvantageWeighted, "):
        grpo.with_knobs({"surrogate": TokenMean()})


@pytest.mark.parametrize(
    ("method", "word", "says"),
    [
        (grpo, "aggregate=TokenMeen", r"no part is named 'TokenMeen'. Did you mean 'TokenMean'.*What fits: ConstantLength, "),
        (grpo, "aggregate=GroupBaseline", "GroupBaseline is an advantage, which does not fit there. What fits: ConstantLength, "),
        (grpo, "aggregate=advantage.TokenMean", "TokenMean is a part of the kind 'aggregate'"),
        (dhpo, "ratio.mix=TokenRatio", "TokenRatio is a ratio, which does not fit there. What fits: ConstantMix, EntropyMix"),
        (grpo, "ratio=Hybrid(mix=TokenRatio())", "TokenRatio is a ratio, which does not fit there. What fits: ConstantMix"),
        (grpo, "regularize=Regularizer", "no part is named 'Regularizer'"),
        (grpo, "terms.more=TokenMean", "TokenMean is an aggregate, which does not fit there. What fits: Term"),
        (grpo, "terms.more=Term", "Term needs source, advantage, ratio, surrogate, aggregate"),
        (grpo, "surrogate=PessimisticClip(lwo=0.1)", "has no field 'lwo'. Did you mean 'low'. Its fields: low, high, dual"),
        (grpo, "surrogate=PessimisticClip(0.1)", "give the fields of PessimisticClip by name.*Its fields: low, high, dual"),
        (grpo, "surrogate=PessimisticClip(low='much')", "low of PessimisticClip is 'much'; it must be a number"),
        (grpo, "surrogate=PessimisticClip(low=much)", "low of PessimisticClip is 'much'; it must be a number"),
        (grpo, "surrogate=PessimisticClip(low=-0.1)", "low"),
        (grpo, "surrogate=PessimisticClip(low=None)", "must be a number, a word, a part or a tuple"),
        (grpo, "surrogate=PessimisticClip(low=0.1, low=0.2)", "repeated|twice"),
        (grpo, "surrogate=PessimisticClip(**low)", r"takes no \*\*"),
        (grpo, "advantage=GroupBaseline(scale=stdd)", "it must be one of std"),
        (grpo, "advantage=GroupBaseline(ddof=0.5)", "it must be a whole number"),
        (grpo, "advantage=GroupBaseline(leave_one_out=1)", "it must be True or False"),
        (grpo, "advantage=none", "a method needs its advantage"),
        (dhpo, "ratio.mix=none", "Hybrid cannot be without its mix"),
        (grpo, "aggregate=TokenMean,TokenMean", "room for one part"),
        (grpo, "surrogate=0.3", r"PessimisticClip is a part, not a knob. Its knobs: low, high, dual.* Class\(field=value\)"),
        (grpo, "surrogate='PessimisticClip'", "PessimisticClip is a part, not a knob"),
        (grpo, "weight=0.5", "0 parts in slot 'weight'"),
        (grpo, "rollout=3", "has nothing in slot 'rollout'"),
        (grpo, "surrogate=PessimisticClip(low=", "that is no part"),
        (grpo, "surrogate=" + "Hybrid(mix=" * 900, "at most 4,000 characters"),
        (grpo, "surrogate=" + "(" * 1500, "that is no part"),
        (grpo, "surrogate=PessimisticClip(low=" + "-" * 3900 + "1)", "no part|nested too deep"),
        (grpo, "ratio=" + "Hybrid(mix=" * 300 + ")" * 300, "no part|nested too deep|fit"),
        (grpo, "models=ValueFunction", "say under which name"),
        (ppo, "models.valu=none", "has none of that name. It has value"),
        (grpo, "weight.1=TopEntropy", "0 parts in slot 'weight'"),
        (grpo, "surrogate=nothing/PessimisticClip", "no part is named 'PessimisticClip'"),
    ],
)  # fmt: skip
def test_what_cannot_be_set_is_refused_and_says_what_can(method: Method, word: str, says: str):
    with pytest.raises(MethodError, match=says) as told:
        after(method, word)
    assert "\n" not in str(told.value) and f"--set {word.split('=')[0]}=" in str(told.value)


def test_a_knob_before_its_part_is_refused_as_it_would_be_lost():
    with pytest.raises(MethodError, match=r"--set surrogate=ClippedWeight stands behind --set surrogate.high.*whole part first"):
        after(grpo, "surrogate.high=0.3", "surrogate=ClippedWeight")


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')", "PessimisticClip(low=__import__('os').getpid())", "PessimisticClip(low=1+1)",
        "(lambda: PessimisticClip())()", "[PessimisticClip for _ in (1,)]", "PessimisticClip(low=open('x'))", "A.__init__",
        "PessimisticClip(low=f'{1}')", "PessimisticClip()()", "a.b.PessimisticClip", "PessimisticClip if 1 else 2", "x := 1",
    ],
)  # fmt: skip
def test_text_is_never_evaluated(text: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("os.getpid", lambda: pytest.fail("it was called"))
    monkeypatch.setattr("os.system", lambda words: pytest.fail("it was called"))
    with pytest.raises(MethodError):
        grpo.with_knobs({"surrogate": text})


@pytest.mark.parametrize("name", [name for name, method in catalogue().items()])
def test_every_part_of_the_catalogue_comes_back_from_its_text(name: str):
    for slot in SLOTS:
        for _, part in [(path, part) for path, part in find(name).parts() if path == slot or path.count(".") == 1]:
            assert read_parts(as_text(part), Part, "") == (part,)


def test_every_part_that_needs_nothing_is_made_from_its_bare_name():
    for name, part in own_parts().items():
        if name not in ("term.Term", "stage.Stage"):
            assert read_parts(name, Part, "") == (part(),)


@dataclass(frozen=True)
class Levels(TopEntropy):
    levels: tuple[float, ...] = (0.1, 0.2)


@pytest.mark.parametrize("text", ["0.3,0.4", "(0.3, 0.4)", "0.3, 0.4,"])
def test_a_knob_that_holds_several_numbers(text: str):
    method = grpo.derive(weight=Levels())
    assert method.with_knobs({"weight.levels": text}).weight == (Levels(levels=(0.3, 0.4)),)
    with pytest.raises(MethodError, match=r"--set weight.levels=a,b"):
        method.with_knobs({"weight.levels": "a,b"})


# -- everywhere ------------------------------------------------------------------------------------------------------------

SMALL = ["--task", "reverse:length=2", "--model", "tiny:layers=1,width=16", "--steps", "1", "--tasks-per-step", "2",
         "--samples-per-task", "2", "--warm-start", "0", "--eval-problems", "2", "--quiet"]  # fmt: skip


def test_a_run_has_the_part_that_was_set(tmp_path: Path, capsys):
    sets = ["--set", "aggregate=TokenMean", "--set", "surrogate=PessimisticClip(low=0.1)", "--set", "surrogate.high=0.3"]
    assert main(["train", "grpo", *SMALL, *sets, "--out", str(tmp_path / "run")]) == 0
    method = up.load(tmp_path / "run").plan.method
    assert method.aggregate == TokenMean() and method.surrogate == PessimisticClip(0.1, 0.3)
    # The board's page has the command that would start it again.
    words = shlex.split(command(tomllib.loads((tmp_path / "run" / "run.toml").read_text())))
    again = after(find("grpo").for_domain("text"), *[words[at + 1] for at, word in enumerate(words) if word == "--set"])
    assert again.derive(on=()) == method
    assert main(["train", "grpo", *SMALL, "--set", "aggregate=TokenMeen", "--out", str(tmp_path / "no")]) == 2
    assert "Did you mean 'TokenMean'" in capsys.readouterr().err and not (tmp_path / "no").exists()


def test_python_takes_the_same(tmp_path: Path):
    run = up.train(
        "grpo", "reverse:length=2", model="tiny:layers=1,width=16", steps=1, tasks_per_step=2, samples_per_task=2, warm_start=0.0,
        eval_problems=2, out=tmp_path / "run", knobs={"surrogate": PessimisticClip(low=0.1), "surrogate.high": 0.3},
    )  # fmt: skip
    assert up.load(run.path).plan.method.surrogate == PessimisticClip(0.1, 0.3)


def test_by_domain_too():
    method = grpo.derive(on={"text": {"aggregate": "TokenMean", "surrogate": PessimisticClip(low=0.1)}})
    assert method.for_domain("text").aggregate == TokenMean()
    again = load_method(dump_method(method))
    assert again.for_domain("text").derive(on=()) == method.for_domain("text").derive(on=())


def test_in_a_comparison():
    grid = _grid(["surrogate=PessimisticClip(low=0.1, high=0.2),ClippedWeight", "advantage.eps=1e-6,1e-4"])
    assert grid == {"surrogate": ["PessimisticClip(low=0.1, high=0.2)", "ClippedWeight"], "advantage.eps": ["1e-6", "1e-4"]}
    knobs = {"grpo:aggregate": TokenMean(), "regularize": "none"}
    cells = Question(("grpo", "dapo"), seeds=1, knobs=knobs, grid={"surrogate": grid["surrogate"]}).cells()
    words = cells[0].command(Path("x"))
    assert "aggregate=TokenMean()" in words and "surrogate=PessimisticClip(low=0.1, high=0.2)" in words
    assert "aggregate=TokenMean()" not in cells[-1].command(Path("x"))
    assert len({cell.folder for cell in cells}) == 4


def test_the_board_starts_runs_with_whole_parts():
    words = train_words({"method": "grpo", "set": {"aggregate": "TokenMean"}})
    assert words[-2:] == ["--set", "aggregate=TokenMean"]
    with pytest.raises(MethodError, match="does not fit"):
        train_words({"method": "grpo", "set": {"aggregate": "GroupBaseline"}})


def test_show_takes_it(capsys):
    assert main(["show", "grpo", "--set", "aggregate=TokenMean", "--flat"]) == 0
    told = capsys.readouterr().out
    assert "TokenMean" in told and "SequenceMeanTokenMean" not in told


# -- what the pages say ----------------------------------------------------------------------------------------------------

SAID = re.compile(r"--set +(?:'([^']+)'|`?([\w:.+-]+=[^\s`]+))")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
CONTROL_PAGES = ("coming-from-stable-baselines3.md",)
"""Pages on environments, whose method is ppo where a line names none."""
STORED_PAGES = ("control.md", "coming-from-sb3-d3rlpy.md")
"""Pages that tell of several methods of stored experience at once: one of them must take what is told."""
STORED = [name for name, method in catalogue().items() if method.learner == "actor-critic"]
"""Methods whose pages say how to set them: no other method has their parts."""
IN_NOTES = re.compile(rf"(?<![\w.])((?:{'|'.join(SLOTS)})(?:\.\w+)*)=([A-Za-z_][\w-]*(?:\([^()]*\))?|-?\d[\d.e-]*\d|\d)(?![\w(])")
"""``surrogate.form=per_branch_min``, ``aggregate=TokenMean``, ``advantage=CentredGAE()``"""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_the_pages_tell_people_to_set_can_be_set(page: Path):
    for line in page.read_text().splitlines():
        control = "gym:" in line or page.name in CONTROL_PAGES
        named = [word.rpartition("/")[2] for word in re.split(r"[\s`|]+", line) if word in catalogue()]
        stored = page.parent.name == "methods" and page.stem in STORED
        control = control or stored
        named = [page.stem] if stored else named or ["ppo" if page.name in CONTROL_PAGES else "grpo"]
        # Methods of a file are run by tests/test_docs.py, and tests/test_plugins.py has the package installed.
        if "my_method.py" in line or "my_encoder.py" in line or "with the package installed" in line:
            continue
        for quoted, plain in SAID.findall(line):
            word = quoted or plain.rstrip(".,;" if "(" in plain else ".,;)")
            if "VALUE" in word:
                continue
            owner, _, word = word.rpartition(":") if ":" in word.partition("=")[0] else ("", "", word)
            if page.name in STORED_PAGES:
                assert any(_takes(name, word) for name in (*named, *STORED)), f"{page.name} tells to set {word}, which none takes"
                continue
            after(in_domains(find(owner or named[0]), "control" if control else "text"), word)


def _takes(name: str, word: str) -> bool:
    try:
        after(in_domains(find(name), "control"), word)
    except MethodError:
        return False
    return True


@pytest.mark.parametrize("name", catalogue())
def test_what_a_methods_notes_tell_people_to_set_can_be_set(name: str):
    method = find(name)
    for path, value in IN_NOTES.findall(" ".join([method.notes, method.differs, method.use_when])):
        method.for_domain("text" if method.learner == "policy-gradient" else "control").with_knobs({path: value})


def test_some_pages_and_notes_do_tell():
    assert {value[0].isupper() for method in catalogue().values() for _, value in IN_NOTES.findall(method.notes)} == {True, False}
    assert any(quoted for page in PAGES for quoted, _ in SAID.findall(page.read_text())), "docs show how to set a whole part"
