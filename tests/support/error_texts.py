"""The texts of errors and warnings that the sources can raise, for the test of docs/errors.md.

A text is its literal parts in order, with `...` for what is put in when the error is made:
`python -m tests.support.error_texts` prints them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
GAP = " ... "

# What makes an error, or a part of one, in C++.
MAKERS = re.compile(
    r"\b(fail|fail_errno|raise|invalid|compare|refuse|Error|\w+Error|concat|enlist|TORCH_CHECK\w*|TORCH_WARN\w*)"
    r"\s*(?:\(|\w+\()"
)
# What makes one in Python, beside `raise`.
CALLS = {"warn", "or_warn", "fail", "exit", "UsageError", "error"}
# Fewer words are a part of a text, such as the name of a rank, or a name.
LEAST_WORDS = 3
# A pattern must have so many fixed words, or a fifth of those of the text: else it is too general for it.
LEAST_FIXED_WORDS = 4
# A pattern with fewer fixed letters, such as `... must be ..., not ...`, is the entry of just this text.
LEAST_LETTERS = 12


@dataclass(frozen=True)
class Text:
    place: str  # "csrc/coll/mesh/mesh.cpp:121"
    text: str

    def fits(self, pattern: str) -> bool:
        """Whether the fixed parts of the pattern occur in this text, in order, and say enough of it."""
        parts = fixed_parts(pattern)
        if sum(map(str.isalpha, "".join(parts))) < LEAST_LETTERS:
            return parts == fixed_parts(self.text)
        if words(pattern) < min(LEAST_FIXED_WORDS, words(self.text) / 5):
            return False
        position = 0
        for part in parts:
            position = self.text.find(part, position)
            if position < 0:
                return False
            position += len(part)
        return True


@cache
def fixed_parts(pattern: str) -> list[str]:
    return [part for part in re.split(r"\s*\.\.\.\s*", pattern) if part]


@cache
def words(text: str) -> int:
    return len(re.findall(r"[A-Za-z]{2,}", text))


def is_a_text(text: str) -> bool:
    """Not a name, a path, or JSON, nor a small part such as the name of a rank."""
    if re.match(r'\{?"\w+": ', text):
        return False
    text = re.sub(r"\S*/\S*/\S*", "", text)
    return words(text) >= LEAST_WORDS and len(re.findall(r"(?:^|\s)\W?[A-Za-z]{2,}", text)) > 1


def _literals_and_comments(source: str) -> Iterator[tuple[int, str]]:
    pattern = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)\'', re.S)
    for match in pattern.finditer(source):
        yield match.start(), match.group()


def _unescaped(literal: str) -> str:
    return literal[1:-1].replace("\\n", "\n").replace('\\"', '"').replace("\\\\", "\\")


def _flattened(parts: list[str]) -> str:
    """Literals that touch are one; None between two stands for a value."""
    text = GAP.join(parts)
    return re.sub(r"(?:\s*\.\.\.\s*)+", GAP, text).strip()


def of_cpp(path: Path) -> Iterator[Text]:
    source = path.read_text()
    blanked = list(source)  # without literals and comments, so that calls can be found
    literals: dict[int, str] = {}
    for position, text in _literals_and_comments(source):
        if text[0] == '"':
            literals[position] = text
        blanked[position : position + len(text)] = " " * len(text)
    code = "".join(blanked)
    end_of_last = 0
    for match in MAKERS.finditer(code):
        if match.start() < end_of_last:
            continue  # inside of the call before, which has its text already
        opening = match.end() - 1
        depth, end = 0, opening
        while end < len(code):
            depth += {"(": 1, ")": -1}.get(code[end], 0)
            end += 1
            if depth == 0:
                break
        parts: list[str] = []
        previous_end = opening + 1
        for position, literal in literals.items():
            if not opening < position < end:
                continue
            between = code[previous_end:position]
            if parts and not between.strip():
                parts[-1] += _unescaped(literal)
            else:
                parts.append(_unescaped(literal))
            previous_end = position + len(literal)
        text = _flattened(parts)
        if is_a_text(text):
            yield Text(f"{path.relative_to(ROOT)}:{source.count(chr(10), 0, match.start()) + 1}", text)
            end_of_last = end


def _literal(node: ast.AST, names: dict[str, list[ast.expr]], depth: int = 0) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else GAP
    if isinstance(node, ast.JoinedStr):
        return "".join(_literal(value, names, depth) for value in node.values)
    if isinstance(node, ast.FormattedValue):
        inner = _literal(node.value, names, depth + 1) if isinstance(node.value, ast.IfExp) else ""
        return GAP + inner + GAP
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _literal(node.left, names, depth) + _literal(node.right, names, depth)
    if isinstance(node, ast.IfExp):
        return _literal(node.body, names, depth) + GAP + _literal(node.orelse, names, depth)
    if isinstance(node, ast.Name) and depth < 3 and node.id in names:
        return GAP.join(_literal(value, names, depth + 1) for value in names[node.id])
    if isinstance(node, ast.Call):
        parts = [_literal(argument, names, depth + 1) for argument in node.args]
        if isinstance(node.func, ast.Attribute):
            parts.insert(0, _literal(node.func.value, names, depth + 1))
        return GAP + GAP.join(parts) + GAP
    return GAP


def of_python(path: Path) -> Iterator[Text]:
    tree = ast.parse(path.read_text())
    scopes = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    seen: set[int] = set()
    for scope in [*reversed(scopes), tree]:  # inner functions first
        names: dict[str, list[ast.expr]] = {}
        for node in ast.walk(scope):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                names.setdefault(node.targets[0].id, []).append(node.value)
            if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
                names.setdefault(node.target.id, []).append(node.value)
        for node in ast.walk(scope):
            call = node.exc if isinstance(node, ast.Raise) else node
            if not isinstance(call, ast.Call) or id(call) in seen:
                continue
            name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            if not isinstance(node, ast.Raise) and name not in CALLS:
                continue
            seen.add(id(call))
            text = _flattened([_literal(argument, names) for argument in call.args])
            if is_a_text(text):
                yield Text(f"{path.relative_to(ROOT)}:{node.lineno}", text)


@lru_cache
def all_texts() -> list[Text]:
    cpp = sorted((ROOT / "csrc").rglob("*.cpp")) + sorted((ROOT / "csrc").rglob("*.h"))
    python = sorted((ROOT / "torch_occl").rglob("*.py")) + sorted((ROOT / "occl").rglob("*.py"))
    return [text for path in cpp for text in of_cpp(path)] + [
        text for path in python for text in of_python(path)
    ]


if __name__ == "__main__":
    for found in all_texts():
        print(f"{found.place}: {found.text}")
