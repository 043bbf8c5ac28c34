"""Packages of others: parts, methods, tasks and rewards by entry points, in a package that pip really installs."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

import upslope as up
from upslope import methods
from upslope.cli import main
from upslope.errors import MethodError, Remark, TaskError, UserError
from upslope.methods import catalogue, find, package_methods
from upslope.plugins import named
from upslope.rewards import RewardError, load_reward
from upslope.run import Watcher
from upslope.tasks import list_tasks, load_task

PACKAGE = Path(__file__).parent / "plugin_package"
SMALL = [
    "--model", "tiny:layers=1,width=16", "--steps", "2", "--tasks-per-step", "2", "--samples-per-task", "4", "--warm-start", "0",
    "--eval-problems", "4", "--checkpoint-every", "1", "--quiet",
]  # fmt: skip
ENTRY_POINTS = """[upslope.parts]
acme = acme_rl.parts
[upslope.methods]
acme = acme_rl.methods
[upslope.tasks]
last-letter = acme_rl.tasks:LastLetter
[upslope.rewards]
letters = acme_rl.rewards:letters
"""


def forget() -> None:
    """As a new process would find it."""
    catalogue.cache_clear()
    package_methods.cache_clear()
    importlib.invalidate_caches()
    for name in [each for each in sys.modules if each.partition(".")[0] in ("acme_rl", "other_rl")]:
        del sys.modules[name]


def put(site: Path, name: str, version: str, entry_points: str, **modules: str) -> None:
    """A package in a folder on the path, as pip would put it there."""
    top = name.replace("-", "_")
    for old in site.glob(f"{top}-*.dist-info"):
        shutil.rmtree(old)
    (site / top).mkdir(parents=True, exist_ok=True)
    (site / top / "__init__.py").touch()
    for module, text in modules.items():
        (site / top / f"{module}.py").write_text(text)
    info = site / f"{top}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(entry_points)
    forget()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that packages are installed in."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    forget()
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
    forget()


@pytest.fixture
def acme(site: Path) -> Path:
    """The package acme-rl 1.0, in place without pip."""
    shutil.copytree(PACKAGE / "src" / "acme_rl", site / "acme_rl", ignore=shutil.ignore_patterns("__pycache__"))
    put(site, "acme-rl", "1.0", ENTRY_POINTS)
    return site


# -- installed for real ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_package_that_pip_installed_is_used_like_our_own(site: Path, tmp_path: Path, capsys: pytest.CaptureFixture):
    source = tmp_path / "source"
    shutil.copytree(PACKAGE, source)  # building writes beside the sources
    install = ["install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--target", str(site), str(source)]
    done = subprocess.run([sys.executable, "-m", "pip", *install], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    forget()
    assert main(["methods"]) == 0 and "acme-grpo" in capsys.readouterr().out
    assert main(["show", "acme-grpo"]) == 0 and "acme_rl/methods.py" in capsys.readouterr().out
    out = tmp_path / "run"
    words = ["acme-grpo", "--task", "last-letter:length=2", "--reward", "letters", *SMALL]
    assert main(["train", *words, "--out", str(out)]) == 0 and len(up.load(out).metrics) == 2
    whole = (out / "metrics.jsonl").read_text().splitlines()
    table = (out / "run.toml").read_text()
    assert 'task = "acme-rl/last-letter:length=2"' in table and '"acme-rl/letters"' in table
    assert 'acme-rl = "1.0"' in table and "acme_rl" not in table
    (out / "summary.json").unlink()
    shutil.rmtree(out / "checkpoints" / "step-000002")
    assert main(["resume", str(out), "--quiet"]) == 0 and len((out / "metrics.jsonl").read_text().splitlines()) == len(whole)
    # Its own tests, as its authors would run them.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])}
    own = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "not seeds and not resume", str(source / "tests")],
        capture_output=True, text=True, timeout=300, env=environment, cwd=source,
    )  # fmt: skip
    assert own.returncode == 0 and "14 passed" in own.stdout, own.stdout


def test_the_page_quotes_the_package_as_it_is():
    page = (PACKAGE.parent.parent / "docs" / "your-own-method.md").read_text(encoding="utf-8")
    for file in ("pyproject.toml", "src/acme_rl/methods.py", "tests/test_acme.py"):
        assert (PACKAGE / file).read_text(encoding="utf-8").strip() in page, file


# -- the same, without pip -------------------------------------------------------------------------------------------------


def test_its_method_is_in_the_catalogue(acme: Path, capsys: pytest.CaptureFixture):
    assert main(["methods"]) == 0 and "acme-grpo" in capsys.readouterr().out
    assert main(["show", "acme-grpo"]) == 0
    shown = capsys.readouterr().out
    assert "SoftenNegative(factor=0.5)" in shown and "against grpo" in shown and "acme_rl/methods.py" in shown
    assert main(["show", "acme-grpo+gspo", "--json"]) == 0 and "SoftenNegative" in capsys.readouterr().out
    assert methods.acme_grpo is find("acme-grpo") and "acme_grpo" in dir(methods)
    assert find("grpo") is methods.own_methods()["grpo"]


class Breaks(Watcher):
    def stepped(self, step: int, metrics: object) -> None:
        raise RuntimeError("crash")


def test_it_trains_resumes_and_is_evaluated(acme: Path, tmp_path: Path, capsys: pytest.CaptureFixture):
    out = tmp_path / "run"
    small = dict(model="tiny:layers=1,width=16", steps=2, tasks_per_step=2, warm_start=0.0, eval_problems=4, checkpoint_every=1)
    with pytest.raises(RuntimeError, match="crash"):
        up.train("acme-grpo", "last-letter:length=2", reward="letters", **small, out=out, watcher=Breaks())
    forget()
    with warnings.catch_warnings():
        warnings.simplefilter("error", Remark)
        assert len(up.resume(out).metrics) == 2
    assert up.load(out).table["packages"] == {"acme-rl": "1.0"}
    assert up.load(out).table["task"] == "acme-rl/last-letter:length=2" and up.load(out).table["reward"] == ["acme-rl/letters"]
    assert main(["eval", str(out), "--k", "1", "--problems", "2"]) == 0
    assert main(["check", str(out)]) == 0
    put(acme, "acme-rl", "1.1", ENTRY_POINTS)
    with pytest.warns(Remark, match=r"made with acme-rl 1\.0, and 1\.1 is installed"):
        up.load(out).plan  # noqa: B018
    shutil.rmtree(acme)
    forget()
    assert up.load(out).summary["steps"] == 2
    with pytest.raises(UserError, match=r"made with acme-rl 1\.0.*not installed.*pip install acme-rl==1\.0"):
        up.load(out).plan  # noqa: B018


@pytest.mark.slow
def test_it_is_compared_and_runs_that_are_there_are_kept(acme: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(acme), *filter(None, [os.environ.get("PYTHONPATH")])]))
    small = dict(model="tiny:layers=1,width=16", steps=2, tasks_per_step=2, warm_start=0.0, eval_problems=4, checkpoint_every=1)
    for _ in range(2):  # the second time nothing is trained
        answer = up.compare(
            ["acme-grpo"], "last-letter:length=2", seeds=1, reward="letters", k=0, jobs=1, out=tmp_path / "compared", **small
        )
        assert answer.failures == ()
    assert len(list((tmp_path / "compared").glob("*/summary.json"))) == 1


def test_its_task_and_reward_are_found_by_name(acme: Path, capsys: pytest.CaptureFixture):
    assert load_task("last-letter:length=2").name == load_task("acme-rl/last-letter:length=2").name == "last-letter:length=2"
    assert "last-letter" in {each.name for each in list_tasks()}
    assert main(["tasks"]) == 0 and "Write the last letter: l:fbe= -> e (of acme-rl)" in capsys.readouterr().out
    assert load_reward("letters")(["l:ab="], ["b"], ["b"]) == [1.0] == load_reward("Acme_RL/letters")(["l:ab="], ["b"], ["b"])
    with pytest.raises(TaskError, match=r"no knob 'lenght'. Did you mean 'length'"):
        load_task("last-letter:lenght=2")
    with pytest.raises(TaskError, match=r"no task named 'last-leter'. Did you mean 'last-letter'"):
        load_task("last-leter")
    with pytest.raises(RewardError, match=r"no reward named 'leters'. Did you mean 'letters'"):
        load_reward("leters")
    for load in (load_task, load_reward):
        with pytest.raises(UserError, match=r"a package, and the package nobody-rl is not installed.*pip install nobody-rl"):
            load("nobody-rl/maze")


def test_nothing_is_imported_for_what_is_ours(acme: Path):
    assert load_task("sort") and load_reward("exact") and find("grpo") and methods.dapo
    assert "acme_rl" not in sys.modules


# -- names that are taken, packages that are broken ------------------------------------------------------------------------

OTHER = """
from upslope.methods import grpo
from upslope.parts import TokenMean
mine = grpo.derive(name={name!r}, differs="token mean", aggregate=TokenMean())
"""


def test_a_method_called_like_ours_is_refused_with_both_places(site: Path):
    ours = find("dapo")
    put(site, "other-rl", "0.3", "[upslope.methods]\nx = other_rl.m\n", m=OTHER.format(name="dapo"))
    said = r"two methods are called 'dapo': upslope's own and that of other-rl 0\.3 \(other_rl\.m\)\. Ours is used"
    with pytest.warns(Remark, match=said):
        assert main(["methods"]) == 0
    assert find("dapo") is ours is catalogue()["dapo"]


def test_a_name_of_two_packages_is_nobodys(acme: Path):
    put(acme, "other-rl", "0.3", "[upslope.methods]\nx = other_rl.m:mine\n", m=OTHER.format(name="acme-grpo"))
    with pytest.warns(Remark, match=r"'acme-grpo': that of acme-rl 1\.0 \(acme_rl\.methods\) and that of other-rl 0\.3.*Neither"):
        assert "acme-grpo" not in catalogue()
    with pytest.raises(MethodError, match="no method named 'acme-grpo'"):
        find("acme-grpo")


def test_tasks_and_rewards_of_one_name_are_told_apart_by_their_package(acme: Path):
    points = "[upslope.tasks]\nlast-letter = other_rl.t:Other\nsort = other_rl.t:Other\n[upslope.rewards]\nletters = other_rl.t:pay"
    code = "from acme_rl.tasks import LastLetter as Other\ndef pay(prompts, responses, answers):\n    return [7] * len(answers)\n"
    put(acme, "other-rl", "0.3", points, t=code)
    with pytest.raises(UserError, match=r"2 packages declare 'last-letter'.*acme-rl/last-letter or other-rl/last-letter"):
        load_task("last-letter")
    assert load_reward("other-rl/letters")(["a"], ["b"], ["c"]) == [7.0]
    assert type(load_task("sort")).__name__ == "Sort" and load_task("other-rl/sort").name == "last-letter:length=3"
    assert {"acme-rl/last-letter", "other-rl/last-letter", "other-rl/sort"} <= {each.name for each in list_tasks()}


@pytest.mark.parametrize("value", ["other_rl.m", "other_rl.nothing", "other_rl.n", "other_rl.n:number"])
def test_a_broken_package_is_a_note_and_no_more(value: str, site: Path, capsys: pytest.CaptureFixture):
    points = f"[upslope.methods]\nx = {value}\n[upslope.tasks]\nmaze = {value}\n[upslope.rewards]\npay = {value}\n"
    put(site, "other-rl", "0.3", points, m="raise RuntimeError('half installed')", n="number = 3")
    # A module without methods is nobody's fault; everything else is told.
    with nullcontext() if value == "other_rl.n" else pytest.warns(Remark, match="other-rl"):
        assert main(["methods"]) == 0 and "dapo" in capsys.readouterr().out
    with pytest.warns(Remark, match="other-rl"):
        assert main(["tasks"]) == 0 and "reverse" in capsys.readouterr().out
    with pytest.raises(UserError, match="other-rl"):
        load_task("maze")
    with pytest.raises(UserError, match="other-rl"):
        load_reward("pay")
    assert main(["train", "grpo", "--task", "maze"]) == 2


def test_entry_points_are_named_with_and_without_their_package(acme: Path):
    assert named("upslope.tasks", "last-letter") == named("upslope.tasks", "ACME_rl/last-letter")
    assert named("upslope.tasks", "nobody/last-letter") is None and named("upslope.tasks", "maze") is None


# -- check-method ----------------------------------------------------------------------------------------------------------


def test_check_method_on_a_package_and_in_json(acme: Path, capsys: pytest.CaptureFixture):
    assert main(["check-method", "acme-grpo", "--off", "shape.factor=1", "--no-runs", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["check"] for each in found][:3] == ["complete", "identity", "files"] and all(each["passed"] for each in found)
