"""Which names a package can have."""

from __future__ import annotations

import keyword
import re
import sys
from importlib.util import find_spec

from fuselab.planning.plan import PlanError

_NAME = re.compile(r"[a-z][a-z0-9_]*")
LONGEST = 50


def checked(name: str) -> str:
    """Return a name that Python, C++, pip and the dispatcher take; PlanError says why not."""
    if why := _why_not(name):
        raise PlanError(
            f"NAME: got {name!r}, {why}; expected lower-case letters, digits and _, a letter first"
        )
    return name


def _why_not(name: str) -> str:
    if not _NAME.fullmatch(name):
        return "which is no such name"
    if len(name) > LONGEST:
        return f"longer than {LONGEST} characters"
    if name.endswith("_") or "__" in name:
        return "which pip would write differently"
    if keyword.iskeyword(name) or keyword.issoftkeyword(name):
        return "a word of Python's"
    if name in _CPP_WORDS.split():
        return "a word of C++'s"
    if name in sys.stdlib_module_names:
        return "a module of Python's standard library"
    if find_spec(f"fuseline.ops.{name}") is not None:
        return "an operator of fuseline's"
    if name in (*_NAMESPACES, *_OWN) or find_spec(name) is not None:
        return "a package or namespace that exists"
    return ""


# Namespaces of the dispatcher's that torch has, and what the package has itself.
_NAMESPACES = (
    "aten", "c10d", "debug_mode_ops", "debugprims", "export", "inductor", "inductor_prims", "mkl",
    "mkldnn", "mkldnn_prepacked", "onednn", "prim", "prims", "profiler", "quantization",
    "quantized", "rngprims", "sparse", "static_runtime", "symm_mem", "torch",
)  # fmt: skip
_OWN = ("csrc", "eager", "setup", "spec", "tests")
_CPP_WORDS = (
    "alignas alignof asm auto bool case catch char class concept const constexpr default delete do"
    " double enum explicit export extern float friend goto inline int long mutable namespace"
    " new noexcept operator private protected public register requires short signed sizeof static"
    " struct switch template this throw typedef typename union unsigned using virtual void volatile"
    " std main forward backward value slope"
)
