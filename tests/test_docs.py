"""The documents say what is so: their examples run and print what the page says, links lead somewhere, generated pages are current.

Commands that train are run with `SMALL` behind them, and those that make data make little: a page can show the command a reader
wants and still be tested in a second.
"""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import io
import itertools
import re
import shlex
import shutil
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from hostile_programs import needs_sandbox
from places import ROOT

from upslope.cli import main
from upslope.cli.parsers import parsers
from upslope.errors import MethodError
from upslope.methods import catalogue, find
from upslope.parts import MLP
from upslope.runtime.synonyms import meant
from upslope.tasks import task_domain

torch.set_num_threads(1)

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
METHOD_PAGES = sorted((ROOT / "docs" / "methods").glob("*.md"))
EXAMPLES = ROOT / "examples"

SMALL = {
    "text": "--model tiny:layers=1,width=32 --warm-start 0 --steps 2 --tasks-per-step 2 --samples-per-task 4 --max-tokens 4 "
    "--eval-problems 8 --checkpoint-every 1",
    "control": "--steps 1 --envs 2 --horizon 32 --passes 1 --eval-problems 2",
    "episodes": "--steps 1 --tasks-per-step 2 --samples-per-task 2 --eval-problems 2",
    "stored": "--steps 1 --horizon 110 --updates-per-step 2 --minibatch 16 --eval-problems 2",
}
TRAINING = {
    "README.md", "coming-from-sb3-d3rlpy.md", "coming-from-stable-baselines3.md", "coming-from-trl.md", "coming-from-verl.md",
    "comparing.md", "control.md", "curricula.md", "data.md", "demonstrations.md", "preferences.md", "python.md", "reward-models.md",
    "runs.md",
    "your-own-method.md",
}  # fmt: skip
"""Pages whose examples train for several seconds."""
SAME_EVERY_TIME = ("show", "methods", "tasks")
"""Commands whose output on a page must be what they print."""
FENCE = re.compile(r"(?P<before>[^\n]*)\n```(?P<kind>\w+)\n(?P<body>.*?)\n```", re.S)


class Block(NamedTuple):
    """An example of a page."""

    kind: str
    body: str
    line: int
    skipped: str


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, with the reason why one is not run, if it has one."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in FENCE.finditer("\n" + text):
        reason = re.match(r"<!-- not run: (.+) -->", match["before"])
        line = text[: match.start("kind")].count("\n") + 1
        found.append(Block(match["kind"], match["body"], line, reason[1] if reason else ""))
    return found


def commands(block: Block) -> list[tuple[str, str]]:
    """The commands of a shell block, each with the output that follows it (none in ``sh``)."""
    if block.kind == "sh":
        return [(line, "") for line in block.body.splitlines() if line.strip()]
    pieces = re.split(r"^\$ ", block.body, flags=re.M)
    assert pieces[0] == "", "a console block begins with a command"
    return [(piece.partition("\n")[0], piece.partition("\n")[2].rstrip("\n")) for piece in pieces[1:]]


def catalogue_learner(name: str) -> str:
    """The learner of a method by name; nothing for files and compositions."""
    return find(name).learner if name in catalogue() else ""


def run_command(line: str) -> str:
    """Runs a line that begins with ``upslope``; what it printed."""
    words = shlex.split(line, comments=True)
    assert words[0] == "upslope", f"only upslope is run here; say why {words[0]!r} is not"
    given = {"--task", "--data"} & set(words)
    if words[1] == "train" or (words[1] == "compare" and given):
        rewards = {word for flag, word in itertools.pairwise(words) if flag == "--reward"}  # a file's function, too
        control = any(task_domain(word) == "control" for word in words if word not in rewards)
        stored = "--data" in words or (control and catalogue_learner(words[2]) == "actor-critic")
        episodes = control and words[2] in catalogue() and find(words[2]).family == "rlvr"
        words += shlex.split(SMALL["stored" if stored else "episodes" if episodes else "control" if control else "text"])
        if words[2] in catalogue() and len(find(words[2]).stages) > 1:  # a step for each, and one more
            words += ["--steps", str(len(find(words[2]).stages) + 1)]
        words += ["--steps", "2", "--offline-steps", "1"] if "--offline-steps" in words else []
    if words[1:3] == ["data", "make"] and "--steps" not in words:
        words += ["--steps", "1000"]
    if words[1] == "resume" and "--steps" in words:
        words += ["--steps", "3"]
    if words[1] == "compare" and given:
        words.append("--dry-run")  # all that is checked before the first run; tests/report/compare/test_running.py has whole ones
    if words[1] == "eval":
        words += ["--problems", "4"]
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(words[1:])
    assert code == 0, f"{line}: {err.getvalue()}"
    return out.getvalue().rstrip("\n")


def run_python(block: Block, namespace: dict, page: Path) -> None:
    if not block.body.startswith(">>>"):
        exec(compile("\n" * block.line + block.body, str(page), "exec", dont_inherit=True), namespace)
        return
    test = doctest.DocTestParser().get_doctest(block.body + "\n", {}, page.name, str(page), block.line)
    test.globs = namespace
    told: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    failures = runner.run(test, out=told.append, clear_globs=False).failed
    assert not failures, "".join(told)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a reader of the page would stand: an empty folder with the examples in it."""
    for file in EXAMPLES.iterdir():
        if file.is_file():
            shutil.copy(file, tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # as Python does for whoever works there
    return tmp_path


def with_examples() -> list:
    """All pages, those that train marked slow."""
    slow = (pytest.mark.slow,)
    marks = {**dict.fromkeys(TRAINING, slow), "sandbox.md": (*slow, needs_sandbox)}
    return [pytest.param(page, marks=marks.get(page.name, ())) for page in (*PAGES, *METHOD_PAGES)]


@pytest.mark.parametrize("page", with_examples(), ids=lambda page: str(page.relative_to(ROOT)))
def test_examples_run_and_print_what_the_page_says(page: Path, folder: Path) -> None:
    namespace: dict = {"__name__": "page"}
    for block in blocks(page):
        if block.skipped:
            continue
        if block.kind == "python":
            run_python(block, namespace, page)
        elif block.kind in ("sh", "console"):
            for line, shown in commands(block):
                printed = run_command(line)
                if shown and shlex.split(line)[1] in SAME_EVERY_TIME:
                    assert printed == shown, f"{page.name}, line {block.line}: {line}"
        else:
            assert block.kind in ("text", "json", "math", "toml"), f"{page.name}, line {block.line}: what is {block.kind!r}?"


def test_few_examples_are_not_run_and_each_says_why() -> None:
    skipped = [(page.name, block.skipped) for page in PAGES for block in blocks(page) if block.skipped]
    here = [reason for page, reason in skipped if page != "cluster.md"]  # several machines are not to be had in a test
    assert 0 < len(here) <= 4 and all("install" in reason or "serves" in reason for reason in here)
    assert len(skipped) - len(here) <= 3


def test_an_example_that_is_wrong_is_noticed(tmp_path: Path, folder: Path) -> None:
    page = tmp_path / "wrong.md"
    page.write_text("words\n```python\n>>> 1 + 1\n3\n```\n\n<!-- not run: installs -->\n```sh\nrm\n```\n")
    wrong, left_out = blocks(page)
    assert wrong.line == 2 and left_out.skipped == "installs"
    with pytest.raises(AssertionError, match="Expected"):
        run_python(wrong, {}, page)
    with pytest.raises(AssertionError, match="no method named"):
        run_command("upslope show gropo")


# -- what pages quote ------------------------------------------------------------------------------------------------------


def code_of(file: Path) -> str:
    """A file without its docstrings and blank lines."""
    return re.sub(r"\n\s*\n", "\n", re.sub(r'"""(?s:.*?)"""', "", file.read_text(encoding="utf-8"))).strip()


@pytest.mark.parametrize(
    ("page", "file"),
    [("your-own-method.md", "my_method.py"), ("your-own-task.md", "my_reward.py"), ("your-own-task.md", "my_task.py")],
)
def test_pages_quote_the_examples_as_they_are(page: str, file: str, tmp_path: Path) -> None:
    quoted = tmp_path / file
    found = []
    for block in blocks(ROOT / "docs" / page):
        if block.kind == "python":
            quoted.write_text(block.body)
            found.append(code_of(quoted))
    assert code_of(EXAMPLES / file) in found


def test_pages_quote_the_problems_as_they_are() -> None:
    quoted = next(block.body for block in blocks(ROOT / "docs" / "your-own-task.md") if block.kind == "json")
    assert (EXAMPLES / "problems.jsonl").read_text().startswith(quoted + "\n")


def test_the_page_on_the_sandbox_quotes_the_programs_as_they_are() -> None:
    quoted = next(block.body for block in blocks(ROOT / "docs" / "sandbox.md") if block.kind == "json")
    assert (EXAMPLES / "programs.jsonl").read_text() == quoted + "\n"


def test_the_readme_names_every_method() -> None:
    (row,) = re.findall(r"^\| methods \|.*$", (ROOT / "README.md").read_text(encoding="utf-8"), re.M)
    assert set(re.findall(r"`([\w-]+)`", row)) == set(catalogue())


def test_concepts_name_every_slot_in_its_order() -> None:
    from upslope.types import SLOTS

    text = (ROOT / "docs" / "concepts.md").read_text(encoding="utf-8")
    assert tuple(re.findall(r"^\| `(\w+)` \| [^|]*\? \|", text, re.M)) == SLOTS


def test_the_page_on_your_own_method_names_every_slot_with_its_class() -> None:
    from upslope.types import SLOT_CLASSES

    text = (ROOT / "docs" / "your-own-method.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| [^|`]+ \| `(\w+)` \| `(\w+)` \| [^|]+ \|$", text, re.M)
    assert rows == [(slot, kind.__name__) for slot, kind in SLOT_CLASSES.items()]


def rows_of_names(page: Path) -> list[tuple[list[str], list[str]]]:
    """Of a table of names, what stands in backquotes: what it is called elsewhere, and here."""
    cells = re.findall(r"^\| ([^|]*) \| ([^|]*) \| [^|]*\|$", page.read_text(encoding="utf-8"), re.M)
    return [(re.findall(r"`([^`]+)`", there), re.findall(r"`([^`]+)`", here)) for there, here in cells[1:]]


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("coming-from-*.md")), ids=lambda page: page.name)
def test_names_of_other_libraries_are_answered_with_what_the_page_says(page: Path) -> None:
    flags = {name for action in parsers()[1]["train"]._actions for name in action.option_strings}
    rows = rows_of_names(page)
    assert len(rows) > 15
    for there, here in rows:
        given = [shlex.split(each) for each in here if each.startswith("--")]
        for words in given:
            assert {word for word in words if word.startswith("--")} <= flags, here
            if words[0] == "--set":
                assert settable(words[1]), here
        wanted = {f"--set {words[1].partition('=')[0]}=..." if words[0] == "--set" else words[0] for words in given}
        for name in (each.rpartition(".")[2] for each in there if given):
            if re.fullmatch(r"[a-z]\w+", name) and name not in UNTYPED and f"--{name.replace('_', '-')}" not in flags:
                told = meant(name, (), flags=True)
                assert any(f"'{each}'" in told for each in wanted), (name, told)


UNTYPED = ("name", "path", "set_random_seed")
"""Names that nobody types as a flag, or that mean too many things."""


def settable(knob: str) -> bool:
    """Whether one of the methods that the pages speak of takes a knob."""
    path, _, value = knob.partition("=")
    stored = ("sac", "td3", "dqn", "td3-bc", "iql", "cql", "awac")
    for method in (find("grpo"), find("ppo").derive(policy=MLP()), *map(find, stored)):
        try:
            method.with_knobs({path: value})
        except MethodError:
            continue
        return True
    return False


def test_files_that_pages_name_are_there() -> None:
    for page in (ROOT / "docs" / "your-own-method.md", ROOT / "docs" / "concepts.md"):
        for named in re.findall(
            r"`((?:objective|policies|rollout|types|learners)/[\w/]*(?:\.py)?)`", page.read_text(encoding="utf-8")
        ):
            assert (ROOT / "src" / "upslope" / named).exists(), f"{page.name}: {named}"


# -- links and generated pages ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [*PAGES, *METHOD_PAGES, ROOT / "CHANGELOG.md"], ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
    for image, target in re.findall(r"(!?)\[[^\]]*\]\(([^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        if target.startswith("https://") or (image and path.startswith("docs/images/")):
            continue
        file = page.parent / path if path else page
        assert file.exists(), f"{page.name}: {target}"
        if anchor:
            heads = [
                re.sub(r"[^\w -]", "", head).strip().lower().replace(" ", "-")
                for head in re.findall(r"^#+ (.*)$", file.read_text(), re.M)
            ]
            assert anchor in heads, f"{page.name}: {target}"


def generator():
    """docs/generate.py as a module."""
    if str(ROOT / "docs") not in sys.path:
        sys.path.insert(0, str(ROOT / "docs"))
    spec = importlib.util.spec_from_file_location("generate_docs", ROOT / "docs" / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_pages_are_up_to_date() -> None:
    made = generator().pages()
    stale = [path.name for path, text in made.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    assert stale == [], "run 'make docs'"
    assert {path for path in made if path.parent == ROOT / "docs" / "methods"} == set(METHOD_PAGES), "run 'make docs'"


def test_every_method_says_what_it_was_compared_with() -> None:
    collected = generator().collect()
    lacking = [name for name in catalogue() if not all(collected.get(name, {}).get(kind) for kind in ("identity", "oracle"))]
    assert lacking == [], "mark their tests with pytest.mark.checks"


def test_a_method_page_tells_what_the_claims_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = generator()
    (tmp_path / "claims").mkdir()
    page = "# a claim\n\n## K=4\n\n- dhpo: more than grpo: **held**\n- gspo: less\n\n"
    page += "## K=8\n\n- dhpo: more than grpo: **did not hold**\n- dhpo+noise: more\n- dhpo-entropy: less\n"
    (tmp_path / "claims" / "dhpo.md").write_text(page)
    monkeypatch.setattr(module, "DOCS", tmp_path)
    found = module.method_page(catalogue()["dhpo"])
    assert "[a claim](../claims/dhpo.md)" in found
    assert (
        "K=4:\n\n- dhpo: more than grpo: **held**\n\nK=8:\n\n- dhpo: more than grpo: **did not hold**\n- dhpo+noise: more\n"
        in found
    )
    assert "dhpo-entropy: less" not in found and "- gspo: less" in module.method_page(catalogue()["gspo"])
    assert "Not measured yet." in module.method_page(catalogue()["rloo"])


# -- docstrings ------------------------------------------------------------------------------------------------------------


def documented() -> list[str]:
    """Modules of the package whose docstrings hold examples."""
    source = ROOT / "src"
    files = [file for file in (source / "upslope").rglob("*.py") if ">>> " in file.read_text(encoding="utf-8")]
    return sorted(".".join(file.relative_to(source).with_suffix("").parts).removesuffix(".__init__") for file in files)


@pytest.mark.parametrize("name", documented())
def test_examples_in_docstrings(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert result.attempted and not result.failed


def test_the_package_and_train_have_examples() -> None:
    assert {"upslope", "upslope.api.training"} <= set(documented())
