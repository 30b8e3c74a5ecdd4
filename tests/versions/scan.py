"""The private names of torch and Triton that src/ uses, read from its syntax trees.

Private is what begins with one underscore, at any place of a dotted name, and of Triton all but
what its documentation teaches. Found are dotted names (also of what a variable or an import stands
for), and bare ones: attributes of objects whose class the text does not say, and strings, where
neither is a name that the file itself defines. Attributes without an underscore of private objects
are not found; the table names those that matter.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "src"
OTHERS = ("torch", "triton")
PUBLIC_OF_TRITON = re.compile(
    r"triton(\.(jit|JITFunction|language|cdiv|next_power_of_2|testing)\b.*)?"
)
PRIVATE = re.compile(r"_[a-zA-Z]\w*")
# Operators of ours, by names that the sources put together.
OURS = re.compile(r"torch\.ops\.fuseline\b")
# Of named tuples, documented; and what is no name of torch's.
NOT_TORCHS = {
    *("_asdict", "_fields", "_field_defaults", "_make", "_replace", "_exit", "_getframe"),
    # Ours: operators, attributes of another file's objects, an argument, a module.
    *("_cross_entropy", "_cross_entropy_fwd", "_cross_entropy_bwd_", "_product_bwd", "_fuseline"),
    *("_inputs", "_SIZES", "_kept", "_name", "_y", "_host"),
    *("_flash_attn_fwd", "_flash_attn_bwd"),  # FlashAttention-4's
    # Parts of longer names, a variable of click's.
    *("_hit_rate", "_sectors", "_size_in_bytes", "_for_cpu", "_VEC", "_REDIS_", "_us"),
    *("_backward", "_bwd", "_fwd", "_product", "_FUSELAB_COMPLETE"),
}

Places = dict[str, list[str]]


@cache
def used() -> Places:
    """Return each private name that src/ uses, and the files that do."""
    trees = {path: ast.parse(path.read_text()) for path in sorted(SOURCES.rglob("*.py"))}
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path, tree in trees.items():
        for name in dict.fromkeys(names(tree)):
            found[name].append(str(path.relative_to(SOURCES)))
    return dict(sorted(found.items()))


def names(tree: ast.Module) -> Iterator[str]:
    """Yield the private names that a file uses."""
    known, texts, own = _variables(tree), _docstrings(tree), set(_defined(tree))
    inner = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from filter(_is_private, _imported(node).values())
        elif isinstance(node, ast.Attribute):
            dotted = _dotted(node, known)
            if dotted and (id(node) not in inner or PRIVATE.fullmatch(node.attr)):
                if _is_private(name := _without_specials(dotted)):
                    yield name
            elif not dotted and PRIVATE.fullmatch(node.attr) and _is_bare(node, own):
                yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) in texts:
                continue
            yield from _in_text(node.value, own)


def _in_text(text: str, own: set[str]) -> Iterator[str]:
    if re.fullmatch(r"(torch|triton)\.[\w.]+", text) and _is_private(text.rstrip(".")):
        yield text.rstrip(".")
    elif found := re.match(r"aten::(_\w+)", text):
        yield f"torch.ops.aten.{found[1]}"
    elif PRIVATE.fullmatch(text) and text not in own | NOT_TORCHS:
        yield text


def _is_private(dotted: str) -> bool:
    if dotted.startswith("triton"):
        return not PUBLIC_OF_TRITON.fullmatch(dotted)
    parts = dotted.split(".")
    if parts[0] != "torch" or OURS.match(dotted):
        return False
    return any(part.startswith("_") and not part.endswith("__") for part in parts)


def _without_specials(dotted: str) -> str:
    """Return the name before the first __special__ one, or dotted as it is."""
    return re.sub(r"\.__\w+__.*", "", dotted)


def _is_bare(node: ast.Attribute, own: set[str]) -> bool:
    of_self = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
    return not of_self and node.attr not in own | NOT_TORCHS


def _dotted(node: ast.expr, known: dict[str, str]) -> str | None:
    if isinstance(node, ast.Name):
        return known.get(node.id)
    if isinstance(node, ast.Attribute):
        base = _dotted(node.value, known)
        return f"{base}.{node.attr}" if base else None
    # getattr(torch._C, "_name", ...)
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr":
        base, name = _dotted(node.args[0], known), node.args[1]
        if base and isinstance(name, ast.Constant):
            return f"{base}.{name.value}"
    return None


def _imported(node: ast.Import | ast.ImportFrom) -> dict[str, str]:
    """Return what an import of torch or Triton makes known, by the file's name for it."""
    found = {}
    for alias in node.names:
        module = node.module if isinstance(node, ast.ImportFrom) else None
        full = f"{module}.{alias.name}" if module else alias.name
        if full.split(".")[0] in OTHERS and not (isinstance(node, ast.ImportFrom) and node.level):
            found[alias.asname or alias.name] = full
    return found


def _variables(tree: ast.Module) -> dict[str, str]:
    """Return what a file's names stand for: of imports, and of variables set to a dotted name."""
    known: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for name, full in _imported(node).items():
                # `import torch._dynamo` makes `torch` known.
                known[name.split(".")[0]] = full if "." not in name else name.split(".")[0]
    for node in ast.walk(tree):
        value = getattr(node, "value", None)
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(targets[0], ast.Name):
            full = _dotted(value, known) if value else None
            if (full and _is_private(full)) or full == "torch.ops.aten":
                known.setdefault(targets[0].id, full)
    return known


def _docstrings(tree: ast.Module) -> set[int]:
    holders = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    bodies = [node.body for node in ast.walk(tree) if isinstance(node, holders)]
    return {id(b[0].value) for b in bodies if b and isinstance(b[0], ast.Expr)}


def _defined(tree: ast.Module) -> Iterator[str]:
    """Yield the names that a file gives to what it makes."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from (alias.asname or alias.name for alias in node.names)
