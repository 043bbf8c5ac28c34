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
from typing import Any

import pytest
import tomli_w
from board_folders import client
from safetensors.torch import load_file
from test_pinned_runs import build, fingerprint

import upslope as up
from upslope.board.plan_view import changed_knobs, method_of_run, read_whole_plan
from upslope.cli import main
from upslope.errors import MethodError, Remark, UserError
from upslope.methods import catalogue, find
from upslope.objective.surrogate.clip import PessimisticClip
from upslope.plugins import changed_versions, plugins
from upslope.report.compare.gathering import gather
from upslope.runtime.method_file import dump_method, load_method, method_table, modern_table
from upslope.types import Part, part_index
from upslope.types.part_index import KINDS, by_name, class_name, find_part, kind_of, modern_name, own_parts

FIXTURES = Path(__file__).parent / "fixtures"
OLD_RUN = FIXTURES / "run-5f198d0"
MODULE_NAMES: dict[str, list[str]] = tomllib.loads((FIXTURES / "module_names.toml").read_text())
SMALL: dict[str, Any] = {
    "task": "reverse:length=2", "model": "tiny:layers=1,width=16", "steps": 2, "tasks_per_step": 2, "samples_per_task": 2,
    "warm_start": 0.0, "eval_problems": 2, "checkpoint_every": 1, "record": "none",
}  # fmt: skip


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
    assert everywhere - set(KINDS.values()) == set(own_parts().values()), "HOMES of part_index.py misses a module with parts"
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


# -- parts of packages -----------------------------------------------------------------------------------------------------

PARTS = """
from dataclasses import dataclass
from acme_rl.inner import Halved
from upslope.objective.aggregate import TokenMean
from upslope.objective.base import Aggregate

@dataclass(frozen=True)
class Thirds(TokenMean):
    by: float = 3.0
    def __call__(self, batch):
        return super().__call__(batch) / self.by

class _Hidden(TokenMean):
    pass
"""
INNER = """
from dataclasses import dataclass
from upslope.objective.base import Weight

@dataclass(frozen=True)
class Halved(Weight):
    def __call__(self, batch):
        return batch.counted * 0.5
"""


def install(folder: Path, version: str, parts: str = PARTS) -> None:
    """A package in a folder on the path, as pip would put it there."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "acme_rl").mkdir(parents=True)
    (folder / "acme_rl" / "__init__.py").touch()
    (folder / "acme_rl" / "parts.py").write_text(parts)
    (folder / "acme_rl" / "inner.py").write_text(INNER)
    info = folder / f"acme_rl-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: Acme_RL\nVersion: {version}\n")
    (info / "entry_points.txt").write_text("[upslope.parts]\nacme = acme_rl.parts\n")
    importlib.invalidate_caches()


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The package acme-rl 1.0, installed."""
    folder = tmp_path / "site"
    install(folder, "1.0")
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    for name in [each for each in sys.modules if each.partition(".")[0] == "acme_rl"]:
        del sys.modules[name]


def test_a_package_is_found_by_its_entry_point_and_nothing_is_imported_for_it(acme: Path):
    (found,) = [each for each in plugins("upslope.parts") if each.package == "acme-rl"]
    assert (found.version, found.name, found.value) == ("1.0", "acme", "acme_rl.parts") and "acme_rl" not in sys.modules
    assert plugins("upslope.nothing") == []
    assert {name for name in part_index.package_parts() if name.startswith("acme-rl/")} == {
        "acme-rl/aggregate.Thirds", "acme-rl/weight.Halved",
    }  # fmt: skip


def test_a_method_with_parts_of_a_package_is_written_and_read(acme: Path):
    method = find("grpo").with_knobs({"aggregate": "Thirds(by=4)", "weight": "acme_rl/Halved"})
    text = dump_method(method)
    assert 'part = "acme-rl/aggregate.Thirds"' in text and 'part = "acme-rl/weight.Halved"' in text and "acme_rl.parts" not in text
    assert load_method(text) == method
    with pytest.raises(MethodError, match=r"no part 'aggregate.Third'.*Did you mean 'aggregate.Thirds'"):
        load_method(text.replace("aggregate.Thirds", "aggregate.Third"))


def test_a_run_keeps_the_version_of_a_package_and_another_one_is_said(acme: Path, tmp_path: Path):
    out = tmp_path / "run"
    with warnings.catch_warnings():
        warnings.simplefilter("error", Remark)
        up.train("grpo", **SMALL, knobs={"aggregate": "Thirds"}, out=out)
        assert up.load(out).table["packages"] == {"acme-rl": "1.0"} and up.load(out).plan.method.aggregate.by == 3.0
    install(acme, "1.1")
    with pytest.warns(Remark, match=r"made with acme-rl 1\.0, and 1\.1 is installed.*pip install acme-rl==1\.0"):
        assert up.load(out).policy is not None
    for file in (out / "summary.json", *(out / "checkpoints").glob("step-000002/*")):
        file.unlink()
    (out / "checkpoints" / "step-000002").rmdir()
    with pytest.warns(Remark, match="1.1 is installed"):
        assert len(up.resume(out).metrics) == 2


def test_a_run_whose_package_is_missing_says_what_to_install(acme: Path, tmp_path: Path):
    out = tmp_path / "run"
    up.train("grpo", **SMALL, knobs={"aggregate": "Thirds"}, out=out)
    shutil.rmtree(acme)
    importlib.invalidate_caches()
    assert up.load(out).summary["method"] == "grpo"  # to look at it needs no package
    with pytest.raises(UserError, match=r"made with acme-rl 1\.0.*not installed.*pip install acme-rl==1\.0"):
        up.load(out).plan  # noqa: B018
    with pytest.raises(UserError, match=r"'acme-rl/aggregate.Thirds' is a part of a package.*pip install acme-rl$"):
        load_method(dump_method(find("grpo")).replace("aggregate.SequenceMeanTokenMean", "acme-rl/aggregate.Thirds"))


def test_a_package_that_cannot_be_imported_is_named(acme: Path):
    install(acme, "1.0", parts="raise RuntimeError('half installed')")
    with pytest.raises(UserError, match=r"acme-rl 1\.0 cannot be used.*RuntimeError: half installed"):
        find_part("acme-rl/aggregate.Thirds")
    with pytest.warns(Remark, match="half installed"):  # others go on
        assert "acme-rl/aggregate.Thirds" not in part_index.package_parts()


@pytest.mark.parametrize("name", ["/surrogate.X", "../x/surrogate.X", "a; rm -rf b/surrogate.X", "-x/surrogate.X", "x y/a.B"])
def test_what_is_no_package_is_told_so(name: str):
    with pytest.raises(UserError, match="is no name of a package"):
        find_part(name)


def test_a_version_is_shown_in_a_command_only_if_it_is_one():
    with pytest.raises(UserError, match=r"pip install acme-rl$"):
        changed_versions({"acme-rl": "1; rm -rf x"})


def test_a_package_without_an_entry_point_is_refused_with_a_cure(acme: Path, tmp_path: Path):
    module = importlib.import_module("acme_rl.inner")
    info = acme / "acme_rl-1.0.dist-info"
    (info / "entry_points.txt").unlink()
    importlib.invalidate_caches()
    with pytest.raises(MethodError, match=r"weight.0 is a Halved from the module 'acme_rl.inner'.*'upslope.parts'"):
        up.train(find("grpo").derive(weight=module.Halved()), **SMALL, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


# -- parts beside a user's file --------------------------------------------------------------------------------------------

NEIGHBOUR = """
from dataclasses import dataclass
from upslope.objective.base import Mix, Shape

@dataclass(frozen=True)
class Soften(Shape):
    scope = "update"
    factor: float = 0.5
    def __call__(self, batch):
        return batch.advantage * self.factor
"""
MINE = """
from dataclasses import dataclass
import upslope as up
from beside_mine import Soften
from upslope.objective.base import Weight

@dataclass(frozen=True)
class Holds(Weight):
    inner: Soften = Soften(0.1)
    def __call__(self, batch):
        return batch.counted

method = up.method("grpo").derive(name="mine", shape=Soften(0.25), weight=Holds())
"""


@pytest.mark.slow
def test_a_part_in_a_neighbouring_file_is_kept_with_the_run(tmp_path: Path):
    mine, out = tmp_path / "mine.py", tmp_path / "run"
    mine.write_text(MINE)
    (tmp_path / "beside_mine.py").write_text(NEIGHBOUR)
    up.train(str(mine), **SMALL, out=out)
    text = (out / "run.toml").read_text()
    assert ":beside_mine.Soften@" in text and ":Holds@" in text
    mine.unlink()
    (tmp_path / "beside_mine.py").unlink()
    (out / "summary.json").unlink()
    shutil.rmtree(out / "checkpoints" / "step-000002")
    code = (
        "import sys, upslope as up; run = up.resume(sys.argv[1]); method = run.plan.method;"
        "assert type(method.weight[0].inner) is type(method.shape[0]) and method.shape[0].factor == 0.25"
    )
    done = subprocess.run([sys.executable, "-c", code, str(out)], capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(up.load(out).metrics) == 2


@pytest.mark.parametrize("attribute", ["os.system", "beside_mine.Nothing", "json.JSONDecoder", "beside_mine.dataclass"])
def test_a_name_behind_a_users_file_imports_nothing_else(attribute: str, tmp_path: Path):
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "beside_mine.py").write_text(NEIGHBOUR)
    out = tmp_path / "run"
    up.train(str(tmp_path / "mine.py"), **{**SMALL, "steps": 1}, out=out)
    text = (out / "run.toml").read_text()
    (out / "run.toml").write_text(text.replace(":beside_mine.Soften@", f":{attribute}@"))
    with pytest.raises(MethodError, match="is not a part"):
        up.load(out).plan  # noqa: B018
