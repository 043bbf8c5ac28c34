"""Formulas, one line of text each, as MathML.

The text is what ``upslope show`` prints: ``_`` and ``^`` for indices, ``Σ`` for sums, ``/`` for fractions, words where a paper has
words. A fraction is set as one only where nobody could read it otherwise; elsewhere its slash stays. Every character is escaped,
and a text that is too long for a formula gives ``""``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import escape

LONGEST = 4000
DEEPEST = 40
"""Brackets within brackets; beyond that it is no formula."""

FUNCTIONS = frozenset(
    {"log", "log2", "ln", "exp", "min", "max", "argmax", "clip", "mean", "median", "std", "Var", "sg", "sgn", "soft", "softmax"}
    | {"softplus", "Beta", "BCE", "GAE", "KL"}
)
INDICES = frozenset({"it", "is", "ij", "jt"})
"""Two indices written as one word."""
SIGNS = {
    "-": "−", "<-": "←", "->": "→", ">=": "≥", "<=": "≤", "Σ": "∑", "*": "·", "..": "…", "'": "′",
}  # fmt: skip
OPENING = {"(": ")", "[": "]", "{": "}", "⟨": "⟩", "⌊": "⌋", "⌈": "⌉"}
RAISED = {"²": "2", "³": "3", "ᵀ": "T", "'": "′", "⁻": "−"}
LOWERED = {**{chr(0x2080 + digit): str(digit) for digit in range(10)}, "₊": "+", "₋": "−"}
HALVES = {"½": ("1", "2"), "¼": ("1", "4"), "¾": ("3", "4"), "⅓": ("1", "3")}
RELATIONS = frozenset("=+-−·*,;:<>≤≥←→±∋∈…")
"""Signs beside which a fraction ends."""

_TOKEN = re.compile(
    r"""(?P<space>\s+)
    |(?P<number>\d+(?:\.\d+)?(?:e[+-]?\d+)?%?)
    |(?P<word>[A-Za-z]{2,}(?:-[a-z]{2,})*\d*(?:'s\b|(?<=s)'(?!\w))?)
    |(?P<letter>[^\W\d_][\u0300-\u036f]*)
    |(?P<sign><-|->|>=|<=|\.\.|.)""",
    re.VERBOSE,
)


@dataclass(frozen=True)
class Token:
    """A piece of the text and whether a space stands before it, and how wide."""

    kind: str
    text: str
    gap: int


@dataclass
class Node:
    """A piece of the formula."""

    xml: str
    kind: str
    """``atom`` can be a side of a fraction, and so can ``group``, without its brackets; ``function``, ``word``, ``sum`` and
    ``sign`` cannot; ``call`` is what a function is applied to."""
    gap: int = 0
    inner: str = ""
    """What is in the brackets of a group."""
    bracketed: str = ""
    """A group with its brackets, even where it needs none by itself."""
    named: bool = False
    """Whether it begins with a word, as functions do."""


def formula_mathml(formula: str) -> str:
    """A formula as a ``<math>`` element, or ``""``."""
    text = "".join(each for each in formula if each.isprintable() or each in " \n\t")
    if not text.strip() or len(text) > LONGEST:
        return ""
    reader = _Reader(_tokens(text))
    body = reader.row(None, 0)
    return f'<math xmlns="http://www.w3.org/1998/Math/MathML" display="block">{body}</math>' if body else ""


def _tokens(text: str) -> list[Token]:
    found, gap = [], 0
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup or "sign"
        if kind == "space":
            gap = len(match[0])
            continue
        found.append(Token(kind, match[0], gap))
        gap = 0
    return found


class _Reader:
    """Reads tokens from left to right; brackets that do not close are signs like others."""

    def __init__(self, tokens: list[Token]):
        self.tokens, self.at = tokens, 0

    def row(self, closer: str | None, depth: int) -> str:
        return "".join(self._spaced(_with_fractions(self.nodes(closer, depth))))

    def nodes(self, closer: str | None, depth: int) -> list[Node]:
        """Up to the closing bracket, which is left standing."""
        found: list[Node] = []
        while self.at < len(self.tokens) and self.tokens[self.at].text != closer:
            token = self.tokens[self.at]
            node = self._node(token, depth, called=bool(found) and token.gap == 0 and found[-1].kind in ("function", "atom"))
            node = self._with_indices(node, depth)
            if found and node.kind == "call":
                name = found.pop()
                node = Node(f"<mrow>{name.xml}{node.xml}</mrow>", "atom", name.gap, named=name.kind == "function")
            found.append(node)
        return found

    def _node(self, token: Token, depth: int, called: bool) -> Node:
        if token.text in OPENING and token.text != "{" and (group := self._group(token, depth)) is not None:
            # What follows a name without a space is what it is applied to; its brackets stay.
            return Node(group.bracketed, "call", token.gap) if called and token.text == "(" else group
        self.at += 1
        if token.kind == "number":
            return Node(f"<mn>{escape(token.text)}</mn>", "atom", token.gap)
        if token.text in HALVES:
            over, under = HALVES[token.text]
            return Node(f"<mfrac><mn>{over}</mn><mn>{under}</mn></mfrac>", "atom", token.gap)
        if token.text == "Σ":
            return Node("<mo>∑</mo>", "sum", token.gap)
        if token.text == "√":
            return self._root(token, depth)
        if token.kind == "letter":
            return Node(f"<mi>{escape(token.text)}</mi>", "atom", token.gap)
        if token.kind == "word":
            return self._word(token)
        return Node(_sign(token.text), "sign", token.gap)

    def _word(self, token: Token) -> Node:
        following = self.tokens[self.at] if self.at < len(self.tokens) else None
        applied = following is not None and following.gap == 0 and following.text in ("(", "_", "^")
        if token.text in FUNCTIONS or applied:
            return Node(f"<mi>{escape(token.text)}</mi>", "function", token.gap)
        if token.text.isupper():
            return Node(f"<mi>{escape(token.text)}</mi>", "atom", token.gap)
        return Node(f"<mtext>{escape(token.text.replace(chr(39), '’'))}</mtext>", "word", token.gap)

    def _group(self, token: Token, depth: int) -> Node | None:
        """What stands in brackets; None if they do not close."""
        closer, start = OPENING[token.text], self.at
        if depth >= DEEPEST or not self._closes(token.text, closer):
            return None
        self.at = start + 1
        inner = self.nodes(closer, depth + 1)
        self.at += 1
        content = _with_fractions(inner)
        row = "".join(self._spaced(content))
        xml = f"<mrow>{_sign(token.text)}{row}{_sign(closer)}</mrow>"
        if token.text == "(" and len(content) == 1 and row.startswith("<mfrac>"):  # (1/T) needs no brackets
            return Node(row, "atom", token.gap, bracketed=xml)
        return Node(xml, "group" if token.text == "(" else "atom", token.gap, inner=f"<mrow>{row}</mrow>", bracketed=xml)

    def _closes(self, opener: str, closer: str) -> bool:
        depth = 0
        for token in self.tokens[self.at :]:
            depth += (token.text == opener) - (token.text == closer)
            if depth == 0:
                return True
        return False

    def _root(self, token: Token, depth: int) -> Node:
        under = self._argument(depth)
        return Node(f"<msqrt>{under}</msqrt>" if under else _sign("√"), "atom", token.gap)

    def _with_indices(self, node: Node, depth: int) -> Node:
        lower = upper = ""
        while self.at < len(self.tokens) and self.tokens[self.at].gap == 0:
            text = self.tokens[self.at].text
            if text in LOWERED and not lower:
                self.at += 1
                lower = _index(LOWERED[text])
            elif text in RAISED and not upper:
                self.at += 1
                upper = _index(RAISED[text])
            elif text == "_" and not lower and node.kind != "sign":
                self.at += 1
                lower = self._argument(depth) or _sign("_")
            elif text == "^" and not upper and node.kind != "sign":
                self.at += 1
                upper = self._argument(depth) or _sign("^")
            else:
                break
        return _indexed(node, lower, upper)

    def _argument(self, depth: int) -> str:
        """What an index or a root applies to: a bracket without its brackets, or the next piece."""
        if self.at >= len(self.tokens) or self.tokens[self.at].gap:
            return ""
        token = self.tokens[self.at]
        if token.text in ("{", "("):
            if depth >= DEEPEST or not self._closes(token.text, OPENING[token.text]):
                return ""
            self.at += 1
            content = self.row(OPENING[token.text], depth + 1)
            self.at += 1
            return f"<mrow>{content}</mrow>"
        if token.kind == "sign" and token.text not in HALVES:
            return ""
        self.at += 1
        return _index(token.text)

    @staticmethod
    def _spaced(nodes: list[Node]) -> list[str]:
        """With the gaps the text has where MathML would close them: around words, and between clauses."""
        found = []
        for position, node in enumerate(nodes):
            before = nodes[position - 1] if position else None
            if before is not None and node.gap > 1:
                found.append("<mtext>\u2003</mtext>")
            elif before is not None and node.gap and ("word" in (node.kind, before.kind) or _both_names(before, node)):
                found.append("<mtext>\u00a0</mtext>")
            found.append(node.xml)
        return found


def _both_names(before: Node, node: Node) -> bool:
    """``log π`` and ``A log π`` need a space; ``r A`` does not."""
    named = node.kind == "function" or node.named
    return (before.kind == "function" and node.kind != "sign") or (named and before.kind in ("atom", "group"))


def _indexed(node: Node, lower: str, upper: str) -> Node:
    if not lower and not upper:
        return node
    base = node.xml
    if node.kind == "sum":
        inner = base if not lower else f"<munder>{base}{lower}</munder>"
        return Node(inner if not upper else f"<munderover>{base}{lower or '<mrow></mrow>'}{upper}</munderover>", "sum", node.gap)
    if lower and upper:
        xml = f"<msubsup>{base}{lower}{upper}</msubsup>"
    else:
        xml = f"<msub>{base}{lower}</msub>" if lower else f"<msup>{base}{upper}</msup>"
    return Node(xml, "atom" if node.kind == "group" else node.kind, node.gap, named=node.named)


def _index(text: str) -> str:
    if text in INDICES:
        return "<mrow>" + "".join(f"<mi>{letter}</mi>" for letter in text) + "</mrow>"
    if text[0].isdigit():
        return f"<mn>{escape(text)}</mn>"
    if text in HALVES:
        return f"<mn>{text}</mn>"
    return f"<mi>{escape(text)}</mi>" if text[0].isalpha() else _sign(text)


def _sign(text: str) -> str:
    shown = escape(SIGNS.get(text, text), quote=False)
    if text == "|":  # of itself it would keep its distance, as an operator between two
        return '<mo stretchy="false" lspace="0" rspace="0">|</mo>'
    return f'<mo stretchy="false">{shown}</mo>' if text in "()[]{}⟨⟩⌊⌋⌈⌉" else f"<mo>{shown}</mo>"


def _with_fractions(nodes: list[Node]) -> list[Node]:
    """``a/b`` as a fraction where it can only be read so: no space around the slash, or nothing else beside either side."""
    if len(nodes) == 4 and nodes[2].kind == "sum":  # 1/ΣT, with nothing behind that could belong to the sum
        nodes = [*nodes[:2], Node(f"<mrow>{nodes[2].xml}{nodes[3].xml}</mrow>", nodes[3].kind, nodes[2].gap)]
    found: list[Node] = []
    at = 0
    while at < len(nodes):
        node = nodes[at]
        under = nodes[at + 1] if at + 1 < len(nodes) else None
        if node.xml == _sign("/") and found and under is not None and _is_fraction(found, node, under, nodes[at + 2 : at + 3]):
            over = found.pop()
            found.append(Node(f"<mfrac>{over.inner or over.xml}{under.inner or under.xml}</mfrac>", "atom", over.gap))
            at += 2
            continue
        found.append(node)
        at += 1
    return found


def _is_fraction(before: list[Node], slash: Node, under: Node, after: list[Node]) -> bool:
    over = before[-1]
    if over.kind not in ("atom", "group") or under.kind not in ("atom", "group"):
        return False
    if not slash.gap and not under.gap:
        return not (after and after[0].xml == _sign("/"))
    alone = len(before) == 1 or (before[-2].kind == "sign" and _text_of(before[-2]) in RELATIONS)
    if not alone or not after:
        return alone
    return (after[0].kind == "sign" and _text_of(after[0]) in RELATIONS) or (under.kind == "group" and after[0].kind == "word")


def _text_of(sign: Node) -> str:
    return re.sub(r"<[^>]*>", "", sign.xml).replace("&lt;", "<").replace("&gt;", ">")
