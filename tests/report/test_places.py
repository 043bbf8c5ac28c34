"""Where methods and parts are defined: `show`, the pages and `--json` say it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from places import ROOT

from upslope.api import method
from upslope.cli import main
from upslope.methods import own_methods
from upslope.report.places import method_source, part_source
from upslope.types.part_index import own_parts


def test_every_method_and_every_part_has_its_file():
    for name, each in own_methods().items():
        file = ROOT / "src" / method_source(each)
        assert file.is_file() and f'"{name}"' in file.read_text(encoding="utf-8"), name
    for name, part in own_parts().items():
        assert f"class {part.__name__}" in (ROOT / "src" / part_source(part)).read_text(encoding="utf-8"), name


def test_a_knob_does_not_change_where_a_method_is_from_and_a_composition_is_from_nowhere():
    assert method_source(own_methods()["dapo"].with_knobs({"surrogate.high": 0.3})) == "upslope/methods/rlvr/grpo.py"
    assert method_source(method("dhpo+high-entropy")) == ""


def test_show_names_source_and_tests(capsys: pytest.CaptureFixture):
    assert main(["show", "dhpo"]) == 0
    shown = capsys.readouterr().out
    assert "source  upslope/methods/rlvr/dhpo.py\n" in shown and "tests   tests/methods/rlvr/test_dhpo.py, " in shown
    assert main(["show", "dhpo", "--flat", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["source"] == "upslope/methods/rlvr/dhpo.py" and all((ROOT / file).is_file() for file in record["tests"])
    assert {part["part"]: part["source"] for part in record["parts"]}["BranchClip"].startswith("upslope/objective/surrogate/")


def test_a_users_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture):
    mine = tmp_path / "of_mine.py"
    mine.write_text("from upslope.methods import grpo\nmine = grpo.derive(name='of-mine', differs='nothing')\n")
    assert main(["show", str(mine)]) == 0
    assert capsys.readouterr().out.rstrip().endswith("source  of_mine.py")
