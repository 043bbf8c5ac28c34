"""The LaTeX tables of a comparison: they can be set as they are, whatever the methods are called."""

from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from upslope.report.compare.latex import SPECIAL, latex, plain
from upslope.report.compare.measuring import Comparison, Estimate


def check(tables: str) -> None:
    """Braces and environments are balanced, rows have as many cells as there are columns, nothing is left that is a command."""
    bare = re.sub(r"\\.", "", re.sub(r"(?m)^%.*$", "", tables).replace("\\\\", ""))
    depth = 0
    for character in bare:
        depth += (character == "{") - (character == "}")
        assert depth >= 0
    assert depth == 0 and bare.count("$") % 2 == 0 and not set("#%~^_") & set(bare)
    begun, ended = (re.findall(rf"\\{word}\{{(\w+\*?)\}}", tables) for word in ("begin", "end"))
    assert begun[1::2] == ended[::2] == ["tabular"] * len(begun[::2])
    assert begun[::2] == ended[1::2] and {*begun[::2]} <= {"table", "table*"}
    for columns, body in re.findall(r"\\begin\{tabular\}\{(\w+)\}(.*?)\\end\{tabular\}", tables, re.DOTALL):
        lines = [line for line in body.splitlines() if line.endswith("\\\\")]
        assert lines and all(len(re.findall(r"(?<!\\)&", line)) == len(columns) - 1 for line in lines)
        assert [rule for rule in ("\\toprule", "\\midrule", "\\bottomrule") if body.count(rule) != 1] == []


def test_scores_and_pairs_stand_in_it_with_their_intervals(found: Comparison) -> None:
    tables = latex(found)
    check(tables)
    assert r"\textbf{dhpo} & 5 & 0.920 {\footnotesize [0.903, 0.937]} & 16 (5 of 5) \\" in tables
    assert r"\textbf{dhpo over grpo} & 1.00 {\footnotesize [0.54, 1.00]} & $+0.300$ " in tables
    assert r"    gspo over grpo & 0.60 {\footnotesize [0.27, 0.85]} " in tables
    assert found.finding in tables and r"95\% stratified" in tables


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="LaTeX is not installed (apt-get install texlive-latex-base)")
def test_latex_sets_it_within_a_page_of_two_columns(found: Comparison, tmp_path: Path) -> None:
    named = dataclasses.replace(found, finding="50% of a_b & {c} $y$ ~^ \\ won.")
    (tmp_path / "table.tex").write_text(latex(named))
    (tmp_path / "paper.tex").write_text(
        "\\documentclass[twocolumn]{article}\\usepackage{booktabs}\\usepackage[T1]{fontenc}\n"
        "\\begin{document}\\input{table.tex}\\end{document}\n"
    )
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-draftmode", "paper.tex"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0 and "Overfull \\hbox" not in done.stdout, done.stdout


@pytest.mark.parametrize("name", ["a_b & 100% #1 {x} $y$ ~^\\", "[1pt] *", '<|`"\n\ud800>', "}{", "\\end{tabular}"])
def test_names_are_only_text(found: Comparison, name: str) -> None:
    first = dataclasses.replace(found.standings[0], label=name)
    called = dataclasses.replace(found, standings=[first], pairs=[], finding=f"{name} won.")
    tables = latex(called)
    check(tables)
    assert f"    {plain(name)} & 5" in tables and "\ud800" not in tables and not re.search(r"\\\\\s*[\[*]", tables)


def test_every_special_character_is_escaped() -> None:
    assert plain("50% of a_b & {c}") == r"50\% of a\_b \& \{c\}"
    assert plain("\\~^") == r"\textbackslash{}\textasciitilde{}\textasciicircum{}"
    assert all(plain(character) != character for character in SPECIAL)


def test_one_run_has_no_interval_and_a_negative_return_a_true_minus(found: Comparison) -> None:
    first = found.standings[0]
    task = dataclasses.replace(first.tasks["reverse"], score=Estimate(-120.5, None, None), seeds=[0])
    alone = dataclasses.replace(found, standings=[dataclasses.replace(first, tasks={"reverse": task})], pairs=[])
    tables = latex(alone)
    check(tables)
    assert "dhpo & 1 & $-120.5$ & 16" in tables and tables.count("\\begin{table*}") == 1
