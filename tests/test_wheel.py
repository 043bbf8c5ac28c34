"""The wheel as users get it: built, and installed into an empty environment that has the core's dependencies and nothing else."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import urllib.request
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from places import ROOT, SOURCE

SMALL = [
    "--task", "reverse:length=2", "--model", "tiny:layers=1,width=16", "--steps", "2", "--tasks-per-step", "2",
    "--samples-per-task", "4", "--warm-start", "0", "--eval-problems", "4",
]  # fmt: skip


def closure(requirements: list[str]) -> set[str]:
    """The distributions that these requirements bring with them, themselves included; extras only where they are asked for."""
    found, left = set[str](), [(Requirement(text), "") for text in requirements]
    while left:
        wanted, extra = left.pop()
        if wanted.marker and not wanted.marker.evaluate({"extra": extra}):
            continue
        name = importlib.metadata.distribution(wanted.name).metadata["Name"]
        asked = {"", *wanted.extras} if name not in found else wanted.extras
        found.add(name)
        left += [(Requirement(text), each) for text in importlib.metadata.requires(name) or [] for each in asked]
    return found


def link(distributions: set[str], site: Path) -> None:
    """Puts what is installed here into another environment, without a copy."""
    for name in distributions:
        for file in importlib.metadata.files(name) or []:
            top = file.parts[0]
            if top not in ("..", "__pycache__") and not (site / top).exists():
                (site / top).symlink_to(Path(str(importlib.metadata.distribution(name).locate_file(top))))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built without network from a copy: building leaves files behind."""
    copy = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    shutil.copytree(SOURCE, copy / "src" / "upslope", ignore=shutil.ignore_patterns("__pycache__"))
    words = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-q", "-w", "dist", "."]
    built = subprocess.run(words, cwd=copy, capture_output=True, text=True, timeout=300)
    assert built.returncode == 0, built.stderr
    (made,) = (copy / "dist").glob("*.whl")
    return made


@pytest.mark.slow
def test_the_wheel_has_every_file_of_the_source_and_no_other(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    files = {
        str(file.relative_to(SOURCE.parent)) for file in SOURCE.rglob("*") if file.is_file() and "__pycache__" not in file.parts
    }
    assert names == files
    assert {"upslope/parts.pyi", "upslope/py.typed", "upslope/methods/checks.json", "upslope/board/page/index.html"} <= names


@pytest.fixture(scope="module")
def empty(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and what it requires."""
    folder = tmp_path_factory.mktemp("environment") / "venv"
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    words = ["-m", "pip", "--python", str(folder / "bin" / "python"), "install", "--no-deps", "--no-index", "-q", str(wheel)]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (about,) = importlib.metadata.distributions(name="upslope", path=[str(site)])
    link(closure([text for text in about.requires or [] if "extra ==" not in text]), site)
    return folder


def run(environment: Path, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The installed command, which sees nothing of this environment nor of the source."""
    return subprocess.run(
        [str(environment / "bin" / "upslope"), *words], cwd=cwd, env=surroundings(cwd), capture_output=True, text=True, timeout=300
    )


def surroundings(home: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV", "PYTEST", "COV"))}
    return {**kept, "HOME": str(home), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


@pytest.mark.slow
def test_the_core_alone_trains_shows_and_compares(empty: Path, tmp_path: Path) -> None:
    where = "import upslope, sys, importlib.util as u; print(upslope.__file__, [n for n in sys.argv[1:] if u.find_spec(n)])"
    python = [str(empty / "bin" / "python"), "-c", where, "gymnasium", "fastapi", "uvicorn", "peft", "pytest", "trl"]
    found = subprocess.run(python, cwd=tmp_path, env=surroundings(tmp_path), capture_output=True, text=True, timeout=300).stdout
    assert found.startswith(str(empty)) and found.rstrip().endswith("[]")
    shown = run(empty, "show", "dhpo", cwd=tmp_path)
    assert shown.returncode == 0 and "surrogate" in shown.stdout, shown.stderr
    trained = run(empty, "train", "grpo", *SMALL, "--quiet", cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
    assert json.loads((tmp_path / trained.stdout.strip() / "summary.json").read_text())["steps"] == 2
    compared = run(empty, "compare", "grpo", "gspo", *SMALL, "--seeds", "1", "--k", "0", "--out", "answer", cwd=tmp_path)
    assert compared.returncode == 0, compared.stderr
    assert {"report.html", "report.md", "comparison.json"} <= {file.name for file in (tmp_path / "answer").iterdir()}


@pytest.mark.slow
def test_the_board_names_its_extra_and_works_with_it(empty: Path, tmp_path: Path) -> None:
    refused = run(empty, "board", ".", "--port", "0", cwd=tmp_path)
    assert refused.returncode == 2 and "upslope[board]" in refused.stderr
    extra = tmp_path / "extra"
    extra.mkdir()
    (site,) = empty.glob("lib/python*/site-packages")
    (about,) = importlib.metadata.distributions(name="upslope", path=[str(site)])
    link(closure([text.partition(";")[0] for text in about.requires or [] if text.endswith(('"board"', "'board'"))]), extra)
    words, env = [str(empty / "bin" / "upslope"), "board", ".", "--port", "0"], surroundings(tmp_path) | {"PYTHONPATH": str(extra)}
    board = subprocess.Popen(words, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert board.stdout is not None
        address = board.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:"), board.stderr and board.stderr.read()
        page = urllib.request.urlopen(address, timeout=120).read().decode()
        for name in ("page/js/main.js", "page/css/base.css"):
            assert f"/{name}" in page and urllib.request.urlopen(f"{address}{name}", timeout=120).status == 200
    finally:
        board.kill()
        board.communicate()
