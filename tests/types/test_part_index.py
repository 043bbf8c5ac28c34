"""Names of parts in files: they outlive the layout, they name no module, and files of any age are read."""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
import pkgutil
import shutil
import subprocess
import sys
import tomllib
import warnings
from pathlib import Path

import pytest
import tomli_w
from board_folders import client
from places import FIXTURES
from safetensors.torch import load_file
from test_pinned_runs import build, fingerprint

import upslope as up
from upslope.board.plan_view import changed_knobs, method_of_run, read_whole_plan
from upslope.cli import main
from upslope.errors import MethodError, Remark
from upslope.methods import catalogue, find
from upslope.objective.surrogate.clip import PessimisticClip
from upslope.report.compare.gathering import gather
from upslope.runtime.method_file import dump_method, load_method, method_table, modern_table
from upslope.types import Part, part_index
from upslope.types.part_index import KINDS, by_name, class_name, find_part, kind_of, modern_name, own_parts

OLD_RUN = FIXTURES / "run-5f198d0"
MODULE_NAMES: dict[str, list[str]] = tomllib.loads((FIXTURES / "module_names.toml").read_text())


# -- the names -------------------------------------------------------------------------------------------------------------


def test_every_part_of_ours_has_a_name_of_its_own():
    everywhere = set()
    for home in ("objective", "policies", "rollout"):
        package = importlib.import_module(f"upslope.{home}")
        for module in pkgutil.walk_packages(package.__path__, prefix=f"upslope.{home}."):
            try:
                importlib.import_module(module.name)
            except ModuleNotFoundError as problem:
                assert problem.name == "triton"
    waiting = [Part]
    while waiting:
        below = waiting.pop().__subclasses__()
        waiting += below
        everywhere |= {each for each in below if each.__module__.startswith("upslope.") and not each.__name__.startswith("_")}
    homes = [f"upslope.types.{name}" for name in ("slots", "learned", "curriculum", "probes", "stages")]
    bases = {each for each in everywhere if each.__module__ in homes}  # what a slot takes: no parts themselves
    assert set(KINDS.values()) <= bases
    assert everywhere - bases == set(own_parts().values()), "HOMES of part_index.py misses a module with parts"
    bare = [class_name(name) for name in own_parts()]
    assert len(bare) == len(set(bare)), "files from before format 3 and --set go by the class alone"
    assert all(kind_of(part) == name.partition(".")[0] for name, part in own_parts().items())


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("surrogate.PessimisticClip", ("grpo", "surrogate")), ("mix.EntropyMix", ("dhpo-entropy", "ratio.mix")),
        ("bounds.Bounds", ("dhpo", "surrogate.token")), ("model.ValueFunction", ("ppo", "models.value")),
        ("regularizer.ReferenceKL", ("grpo", "regularize.0")), ("term.Term", ("pipo", "terms.previous")),
        ("rollout.Windows", ("t-ppo", "rollout")),
    ],
)  # fmt: skip
def test_a_part_is_known_by_kind_and_class(name: str, where: tuple[str, str]):
    method, path = where
    part = dict(find(method).parts())[path]
    assert find_part(name) is type(part)
    assert f'part = "{name}"' in dump_method(find(method))


def test_no_file_names_a_module_of_ours():
    for method in catalogue().values():
        assert "upslope." not in dump_method(method.derive(notes=""))


def test_two_parts_of_one_name_are_refused():
    other = type("PessimisticClip", (PessimisticClip,), {})
    with pytest.raises(MethodError, match=r"two parts are called 'surrogate.PessimisticClip'"):
        by_name([PessimisticClip, other])


@pytest.mark.slow
def test_to_print_methods_no_part_is_looked_up():
    code = (
        "import sys, upslope.cli as cli; cli.main(['methods']); from upslope.types.part_index import own_parts;"
        "sys.exit(own_parts.cache_info().currsize)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=300).returncode == 0


@pytest.mark.parametrize(
    "name", ["os:system", "os.path:join", "surrogate.Nothing", "aggregate.PessimisticClip", "upslope.run:Run", ""]
)
def test_other_names_are_refused_and_nothing_is_imported(name: str):
    table = method_table(find("grpo"))
    table["surrogate"] = {"part": name}
    before = set(sys.modules)
    with pytest.raises(MethodError, match="is not a part of upslope"):
        load_method(tomli_w.dumps(table))
    assert set(sys.modules) == before


# -- files of other versions -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODULE_NAMES)
def test_every_name_that_was_ever_written_is_read(name: str):
    part = find_part(name)
    assert own_parts()[modern_name(name)] is part
    fields = {f.name: f for f in dataclasses.fields(part)}
    assert set(MODULE_NAMES[name]) <= set(fields), "an old file has a field that is gone"
    for gained in set(fields) - set(MODULE_NAMES[name]):
        assert fields[gained].default is not dataclasses.MISSING or fields[gained].default_factory is not dataclasses.MISSING


def test_a_class_that_got_another_name_is_found_by_the_old_one(monkeypatch):
    monkeypatch.setattr(part_index, "RENAMED", {"WorseOfTwo": "surrogate.PessimisticClip"})
    for old in ("upslope.objective.surrogate.gone:WorseOfTwo", "surrogate.WorseOfTwo"):
        assert find_part(old) is PessimisticClip
        assert modern_table({"part": old})["part"] == "surrogate.PessimisticClip"


def test_renamed_parts_are_there():
    assert set(part_index.RENAMED.values()) <= set(own_parts()) and not {class_name(each) for each in own_parts()} & set(
        part_index.RENAMED
    )


def test_a_field_that_a_part_gained_has_its_default():
    table = method_table(find("grpo"))
    assert table["surrogate"].pop("dual") == math.inf
    assert load_method(tomli_w.dumps(table)) == find("grpo")
    assert modern_table(table) == method_table(find("grpo"))


def test_a_run_file_of_format_2_is_read():
    table = tomllib.loads((FIXTURES / "run-format-2.toml").read_text())
    assert table["format"] == 2 and "upslope.objective." in table["method"]["advantage"]["part"]
    assert load_method(tomli_w.dumps(table["method"])) == find("remix").for_domain("text").derive(on=())


@pytest.fixture
def old_run(tmp_path: Path) -> Path:
    """A run that commit 5f198d0 made, with module paths and without digests; it was stopped after its third step of six."""
    return Path(shutil.copytree(OLD_RUN, tmp_path / "runs" / "old"))


def test_an_old_run_resumes_to_its_end(old_run: Path, capsys):
    before = [each for each in up.load(old_run).metrics if each["step"] <= 3]
    assert main(["check", str(old_run)]) == 0 and "not verified" in capsys.readouterr().out
    with pytest.warns(Remark, match="before checkpoints had digests"):
        run = up.resume(old_run)
    assert [each["step"] for each in run.metrics] == [1, 2, 3, 4, 5, 6] and run.metrics[:3] == before
    assert run.summary["steps"] == 6 and all(math.isfinite(each["entropy"]) for each in run.metrics)
    assert (old_run / "run.toml").read_bytes() == (OLD_RUN / "run.toml").read_bytes()
    pinned = json.loads(OLD_RUN.with_suffix(".json").read_text())
    if pinned["build"] == build():  # elsewhere another token may be drawn
        weights = load_file(run.folder.latest() / "model.safetensors")
        assert fingerprint(weights) == pinned["weights"], "the old version itself ended elsewhere"
    assert main(["check", str(old_run)]) == 0
    (contender,) = gather([(old_run, None)]).contenders
    assert contender.label == "dhpo"


def test_an_old_run_is_evaluated(old_run: Path, capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Remark)
        assert main(["eval", str(old_run), "--k", "1", "--problems", "2"]) == 0
    assert "dhpo on reverse:length=2" in capsys.readouterr().out
    assert up.load(old_run).plan.method == find("dhpo").derive(on=(), **_texts(old_run))


def _texts(run: Path) -> dict[str, str]:
    """What a method says of itself; that is no part of what it does, and newer versions say it better."""
    table = tomllib.loads((run / "run.toml").read_text())["method"]
    return {key: table[key] for key in ("differs", "formula", "use_when", "notes")}


def test_an_old_run_is_on_the_board_as_what_it_is(old_run: Path):
    board = client(old_run.parent)
    (run,) = board.get("/api/runs").json()["runs"]
    assert (run["method"], run["step"], run["recorded"]) == ("dhpo", 6, True)
    (curve,) = board.get("/api/curves", params={"run": "old", "key": "entropy"}).json()["curves"]
    assert curve["x"] == [1, 2, 3, 4, 5, 6]
    plan = read_whole_plan(old_run.parent, ("old",))
    assert changed_knobs(plan) == {}
    slots = {row["slot"]: row for row in method_of_run(plan)["slots"]}
    assert slots["surrogate"]["value"].startswith("BranchClip(") and "token=Bounds(low=0.2, high" in slots["surrogate"]["value"]
    assert slots["surrogate"]["about"].startswith("Each branch")
    assert not slots["advantage"]["changed"], "a field that GroupBaseline gained is no change against the parent"
    shown = board.get("/api/run", params={"run": "old"}).json()
    assert "upslope.objective" not in str(shown)


def test_an_old_and_a_new_run_of_a_method_are_one_contender(old_run: Path, tmp_path: Path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Remark)
        up.resume(old_run)
    new = Path(shutil.copytree(old_run, tmp_path / "new"))
    table = tomllib.loads((new / "run.toml").read_text())
    table["settings"]["seed"] = 1
    table |= {"format": 3, "packages": {}, "method": method_table(find("dhpo").derive(on=()))}
    (new / "run.toml").write_text(tomli_w.dumps(table))
    (contender,) = gather([(old_run, None), (new, None)]).contenders
    assert len(contender.runs) == 2
