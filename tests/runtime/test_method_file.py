"""A method as a file: written, read, and refused where it could not be read back."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest
from batches import assert_same, gradient, random_batch

import upslope as up
from upslope.errors import MethodError, UserError
from upslope.methods import find
from upslope.runtime.method_file import dump_method, load_method, user_bundles
from upslope.runtime.user_code import keep, load_file
from upslope.types import Method, Weight

grpo, dapo, dhpo, ppo = (find(name) for name in ("grpo", "dapo", "dhpo", "ppo"))


USER_FILE = '''
from dataclasses import dataclass

from upslope.methods import find
from upslope.objective.base import Weight


@dataclass(frozen=True)
class EveryOther(Weight):
    """Every other decision."""

    start: int = 0

    def __call__(self, batch):
        weight = batch.sampled.clone()
        weight[:, self.start :: 2] = 0
        return weight


halved = find("grpo").derive(name="halved", differs="learns from every other token", weight=EveryOther(1))
'''


def test_a_users_own_part_goes_through_toml_with_its_hash(tmp_path: Path):
    path = tmp_path / "my_method.py"
    path.write_text(USER_FILE)
    method, code = load_file(path).halved, tmp_path / "code"
    (bundle,) = user_bundles(method)
    assert isinstance(method, Method) and bundle.root / bundle.entry == path
    keep({bundle}, code)
    text = dump_method(method)
    assert "/my_method.py:EveryOther@" in text
    assert load_method(text, code) == method and hash(load_method(text, code)) == hash(method)
    found = gradient(method, random_batch(0))
    assert_same(gradient(method, random_batch(0), "rows"), found)
    assert not gradient(method.derive(regularize=None), random_batch(0)).logp[:, 1::2].any()
    with pytest.raises(MethodError, match="folder"):
        load_method(text)


def test_a_file_that_changed_is_refused_before_it_runs(tmp_path: Path):
    path = tmp_path / "my_method.py"
    path.write_text(USER_FILE)
    method, code = load_file(path).halved, tmp_path / "code"
    text = dump_method(method)
    keep(user_bundles(method), code)
    (copied,) = code.glob("*/my_method.py")
    copied.write_text(USER_FILE + f"\nopen({str(tmp_path / 'ran')!r}, 'w').close()\n")
    with pytest.raises(UserError, match="not the code this run was started with"):
        load_method(text, code)
    assert not (tmp_path / "ran").exists(), "a file that is refused must not have been executed"


@pytest.mark.parametrize("name", ["this:s", "upslope.types:Batch", "upslope.errors:nothing", "upslope.nowhere:X"])
def test_only_parts_are_read_from_a_file(name: str):
    text = dump_method(grpo).replace("aggregate.SequenceMeanTokenMean", name)
    with pytest.raises(MethodError, match="not a part"):
        load_method(text)
    assert "this" not in sys.modules, "a file must not be able to import whatever it likes"


def test_unknown_fields_in_a_file_are_refused():
    with pytest.raises(MethodError, match="colour"):
        load_method('colour = "red"\n' + dump_method(grpo))
    with pytest.raises(MethodError, match="hihg"):
        load_method(dump_method(grpo).replace("high =", "hihg ="))


def test_what_toml_cannot_hold_is_refused():
    @dataclasses.dataclass(frozen=True)
    class Odd(Weight):
        knob: object = None

    with pytest.raises(MethodError, match="write 'no bound' as inf"):
        dump_method(grpo.derive(weight=Odd()))


def test_a_method_called_like_one_of_the_catalogue_is_refused(tmp_path: Path):
    path = tmp_path / "my_method.py"
    path.write_text(USER_FILE.replace('name="halved"', 'name="grpo"'))
    with pytest.raises(MethodError, match="'grpo' like one of the catalogue"):
        up.method(str(path))
