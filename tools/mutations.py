"""Small faults: every place of a source file where one operator, comparison, constant or function could be another.

Left out is what no test of behaviour should look at: docstrings, annotations, messages of errors, `ranges` and `__all__`, asserts.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

BINARY = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*"), ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "*"), ast.Pow: ("**", "*"), ast.BitAnd: ("&", "|"), ast.BitOr: ("|", "&"), ast.BitXor: ("^", "&"),
}  # fmt: skip
COMPARED = {
    ast.Lt: ("<", ("<=", ">")), ast.LtE: ("<=", ("<", ">=")), ast.Gt: (">", (">=", "<")), ast.GtE: (">=", (">", "<=")),
    ast.Eq: ("==", ("!=",)), ast.NotEq: ("!=", ("==",)), ast.Is: ("is", ("is not",)), ast.IsNot: ("is not", ("is",)),
    ast.In: ("in", ("not in",)), ast.NotIn: ("not in", ("in",)),
}  # fmt: skip
PAIRS = [
    ("min", "max"), ("minimum", "maximum"), ("amin", "amax"), ("clamp_min", "clamp_max"), ("floor", "ceil"), ("any", "all"),
    ("argmin", "argmax"), ("zeros", "ones"), ("zeros_like", "ones_like"), ("sum", "mean"),
]  # fmt: skip
SWAPPED = {one: other for pair in PAIRS for one, other in (pair, pair[::-1])}
UNARY = {ast.Not: "not", ast.USub: "-", ast.Invert: "~"}


@dataclass(frozen=True)
class Mutation:
    """One change of one file: the text from ``begin`` to ``end`` becomes ``after``."""

    file: Path
    line: int
    begin: int
    end: int
    before: str
    after: str

    def apply(self, source: str) -> str:
        return source[: self.begin] + self.after + source[self.end :]

    def what(self) -> str:
        return f"{' '.join(self.before.split())!r} -> {self.after!r}"

    def lines(self, source: str) -> tuple[str, str]:
        """The changed lines without and with the change, in one line each."""
        first, last = source.rfind("\n", 0, self.begin) + 1, source.find("\n", self.end)
        changed = source[first : self.begin] + self.after + source[self.end : last]
        return " ".join(source[first:last].split()), " ".join(changed.split())


class _Places(ast.NodeVisitor):
    """Collects the changes that a syntax tree allows."""

    def __init__(self, file: Path, source: str):
        self.file, self.source, self.found = file, source, list[Mutation]()
        self.starts = [0, *(match.end() for match in re.finditer("\n", source))]

    def at(self, line: int, column: int) -> int:
        """Place in the text of a line and a column, which Python counts in bytes."""
        start = self.starts[line - 1]
        end = self.starts[line] if line < len(self.starts) else len(self.source)
        return start + len(self.source[start:end].encode()[:column].decode())

    def span(self, node: ast.expr) -> tuple[int, int]:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self.at(node.lineno, node.col_offset), self.at(node.end_lineno, node.end_col_offset)

    def add(self, begin: int, end: int, after: str) -> None:
        line = self.source.count("\n", 0, begin) + 1
        self.found.append(Mutation(self.file, line, begin, end, self.source[begin:end], after))

    def between(self, left: ast.expr, right: ast.expr, token: str, after: str) -> None:
        """Changes the operator that stands between two operands."""
        begin, end = self.span(left)[1], self.span(right)[0]
        pattern = r"\s+".join(re.escape(word) for word in token.split())
        match = re.search(pattern, self.source[begin:end])
        if match:
            self.add(begin + match.start(), begin + match.end(), after)

    # -- what is left out ----------------------------------------------------------------------------------------------

    def visit_Raise(self, node: ast.Raise) -> None: ...
    def visit_Assert(self, node: ast.Assert) -> None: ...
    def visit_JoinedStr(self, node: ast.JoinedStr) -> None: ...
    def visit_Import(self, node: ast.Import) -> None: ...
    def visit_ImportFrom(self, node: ast.ImportFrom) -> None: ...

    def visit_keyword(self, node: ast.keyword) -> None:
        if node.arg != "strict":  # an assertion, too
            self.visit(node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None and not (isinstance(node.target, ast.Name) and node.target.id == "ranges"):
            self.visit(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        alias = isinstance(node.value, ast.Subscript) and ast.unparse(node.value.value) in ("Literal", "dict", "Callable")
        if not (alias or {"__all__", "ranges"} & set(names)):
            self.visit(node.value)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for default in (*node.args.defaults, *(each for each in node.args.kw_defaults if each is not None)):
            self.visit(default)
        for statement in node.body:
            self.visit(statement)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for statement in node.body:
            self.visit(statement)

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # a docstring
            self.visit(node.value)

    # -- what is changed -----------------------------------------------------------------------------------------------

    def visit_BinOp(self, node: ast.BinOp) -> None:
        token = BINARY.get(type(node.op))
        plain = (ast.Dict, ast.Set, ast.JoinedStr)
        joined = any(isinstance(side, plain) or _is_text(side) for side in (node.left, node.right))
        if token and not joined:
            self.between(node.left, node.right, *token)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        token = BINARY.get(type(node.op))
        if token and not isinstance(node.value, (ast.Dict, ast.Set)):
            self.between(node.target, node.value, *token)
        self.visit(node.value)

    def visit_Compare(self, node: ast.Compare) -> None:
        for left, operator, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
            token, others = COMPARED[type(operator)]
            for other in others:
                self.between(left, right, token, other)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        token, after = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            self.between(left, right, token, after)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if token := UNARY.get(type(node.op)):
            begin = self.span(node)[0]
            self.add(begin, begin + len(token), "")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr if isinstance(node.func, ast.Attribute) else ""
        plain = name.removesuffix("_") if name.endswith("_") and name[:-1] in SWAPPED else name
        if plain in SWAPPED and not (name == "sum" and isinstance(node.func, ast.Name)):
            end = self.span(node.func)[1]
            self.add(end - len(name), end, SWAPPED[plain] + name[len(plain) :])
        if not name.endswith("Error"):
            self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        begin, end = self.span(node)
        for other in _others(node.value):
            self.add(begin, end, other)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _others(value: object) -> Iterator[str]:
    """What else could stand where a constant does."""
    if isinstance(value, bool):
        yield str(not value)
    elif isinstance(value, str):
        if value in SWAPPED:
            yield repr(SWAPPED[value]).replace("'", '"')
    elif isinstance(value, int):
        yield str(value + 1)
    elif isinstance(value, float):
        # A small number is there to keep something finite: twice as much would be another taste, not a fault.
        yield "1.0" if value == 0 else repr(value * (1000 if value < 1e-3 else 1.5))


def mutations(file: Path) -> list[Mutation]:
    """Every change of this file, in its order."""
    source = file.read_text()
    places = _Places(file, source)
    places.visit(ast.parse(source))
    return sorted(set(places.found), key=lambda each: (each.begin, each.after))
