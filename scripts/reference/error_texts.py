"""The texts of the server's errors, from its source: what its classes of errors are made with."""

import ast
import re
from collections.abc import Iterator

from idalloc_server.domain.errors import Refusal
from scripts.reference.markdown import ROOT

SERVER = ROOT / "server"


def texts() -> dict[str, list[str]]:
    """Return the texts of each reason.

    A value is its name in braces. Texts that only pass another one on are left out.
    """
    trees = [ast.parse(path.read_text()) for path in sorted(SERVER.rglob("*.py"))]
    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    reasons = _reasons(classes)
    # Their arguments are values of a text, not a text.
    with_values = {each.name for each in classes if any(getattr(part, "name", "") == "__init__" for part in each.body)}
    found: dict[str, set[str]] = {reason: set() for reason in reasons.values()}
    for tree in trees:
        for owner, call in _constructions(tree, reasons, with_values):
            if call.args and (text := _text(call.args[0])):
                found[reasons[owner]].add(text)
    found["INVALID_REQUEST"] = {"{field}: {rule}"}
    return {reason: sorted(each) for reason, each in found.items()}


def _reasons(classes: list[ast.ClassDef]) -> dict[str, str]:
    """Return the reason of each class of errors by the class's name."""
    reasons, is_new = {Refusal.__name__: ""}, True
    while is_new:
        before = len(reasons)
        for each in classes:
            bases = [base.id for base in each.bases if isinstance(base, ast.Name) and base.id in reasons]
            if bases and each.name not in reasons:
                own = [keyword.value.value for keyword in each.keywords if isinstance(keyword.value, ast.Constant)]
                inherited = [reasons[base] for base in bases if reasons[base]]
                reasons[each.name] = str([*own, *inherited, ""][0])
        is_new = len(reasons) > before
    return {name: reason for name, reason in reasons.items() if reason}


def _constructions(tree: ast.Module, reasons: dict[str, str], with_values: set[str]) -> Iterator[tuple[str, ast.Call]]:
    """Yield each call that makes an error with its text, with the error's class."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name in reasons:
            yield from ((node.name, call) for call in _calls(node) if ast.unparse(call.func).endswith(".__init__"))
        elif isinstance(node, ast.Call) and (name := ast.unparse(node.func)) in reasons.keys() - with_values:
            yield name, node


def _calls(node: ast.AST) -> Iterator[ast.Call]:
    return (each for each in ast.walk(node) if isinstance(each, ast.Call))


def _text(argument: ast.expr) -> str:
    """Return the text of an argument; empty if it is a variable, or one word, such as a field."""
    if isinstance(argument, ast.Constant):
        text = str(argument.value)
    elif isinstance(argument, ast.JoinedStr):
        text = "".join(map(_part, argument.values))
    else:
        return ""
    return text if len(re.sub(r"'?\{\w*\}'?", "", text).split()) > 2 else ""


def _part(part: ast.expr) -> str:
    if isinstance(part, ast.FormattedValue):
        names = re.findall(r"[A-Za-z]\w*", ast.unparse(part.value))
        value = f"{{{names[-1].lower()}}}"
        return f"'{value}'" if part.conversion == ord("r") else value
    return str(part.value) if isinstance(part, ast.Constant) else ""
