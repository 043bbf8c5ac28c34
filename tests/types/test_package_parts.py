"""Parts of installed packages and of files beside a user's own: found again by name, and nothing else is imported for it."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

import upslope as up
from upslope.errors import MethodError, Remark, UserError
from upslope.methods import find
from upslope.plugins import changed_versions, plugins
from upslope.runtime.method_file import dump_method, load_method
from upslope.types import part_index
from upslope.types.part_index import find_part

SMALL: dict[str, Any] = {
    "task": "reverse:length=2", "model": "tiny:layers=1,width=16", "steps": 2, "tasks_per_step": 2, "samples_per_task": 2,
    "warm_start": 0.0, "eval_problems": 2, "checkpoint_every": 1, "record": "none",
}  # fmt: skip


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
