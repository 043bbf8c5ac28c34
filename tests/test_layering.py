"""A file's folder says what it may know: imports point only downwards."""

import ast
from pathlib import Path

import pytest
from places import SOURCE

# Highest first. A module may import from its own layer and from those below.
LAYERS = [
    "cli", "api", "given", "board", "serving", "report", "datasets", "testing", "methods", "parts", "run", "plan", "setting_up",
    "sizes", "learners", "evolve", "curriculum", "rollout", "experience", "rewards", "tasks", "policies", "objective", "runtime",
    "types", "knobs", "plugins", "fields", "errors", "packed", "plain_data",
]  # fmt: skip
FILES = sorted(SOURCE.rglob("*.py"))


def layer(module: str) -> str:
    return module.split(".")[1]


def imported(file: Path) -> set[str]:
    """Modules of upslope that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {node.module} if node.module != "upslope" else {f"upslope.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name for name in found if name.startswith("upslope.")}


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(SOURCE)))
def test_imports_point_downwards(file: Path):
    own = file.relative_to(SOURCE).with_suffix("").parts[0]
    if own in ("__init__", "__main__"):  # the package's door may open on anything
        return
    assert own in LAYERS, f"{own} has no place in the order of layers"
    for module in imported(file):
        if layer(module) == "__version__":
            continue
        assert LAYERS.index(layer(module)) >= LAYERS.index(own), f"{file.name} ({own}) imports {module} from above"


@pytest.mark.parametrize("file", sorted((SOURCE / "objective").rglob("*.py")), ids=lambda f: str(f.relative_to(SOURCE)))
def test_the_objective_knows_only_torch_and_the_nouns(file: Path):
    for node in ast.walk(ast.parse(file.read_text())):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        for name in names:
            top = name.split(".")[0]
            allowed = ("upslope.objective", "upslope.types", "upslope.errors", "upslope.packed", "upslope.plain_data")
            assert (
                name.startswith(allowed)
                if top == "upslope"
                else top in ("torch", "math", "dataclasses", "typing", "collections", "itertools", "copy", "__future__")
                or (top in ("numpy", "scipy") and file.parent.name == "models")  # a solved model looks at all that is recorded
            )


def test_the_check_can_fail(tmp_path: Path):
    bad = tmp_path / "bad.py"
    bad.write_text("from upslope.methods import find\n")
    assert imported(bad) == {"upslope.methods"}
