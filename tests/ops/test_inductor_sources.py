"""What Inductor writes of our Triton kernels into its own files: needs no GPU.

It copies a kernel with all that the kernel's functions name: functions by their source, constants
by their repr, each under its bare name. So a constant must be what its repr evaluates to, and one
name must mean one thing in all of a kernel's functions.
"""

from __future__ import annotations

import builtins
import dis
import importlib
import importlib.util
import pkgutil
from collections.abc import Iterator
from typing import Any

import pytest

triton = pytest.importorskip("triton")

from torch._inductor.codegen.wrapper import (  # noqa: E402
    user_defined_triton_kernel_transitive_closure_source_code as source_of,
)

import fuseline  # noqa: E402

HEAD = "import triton\nimport triton.language as tl\n"

pytestmark = pytest.mark.skipif(
    triton.knobs.runtime.interpret, reason="TRITON_INTERPRET is set: there are no JITFunctions"
)


def _modules() -> Iterator[Any]:
    for found in pkgutil.walk_packages(fuseline.__path__, "fuseline."):
        if "impl_triton" in found.name or ".primitives.triton" in found.name:
            yield importlib.import_module(found.name)


def _functions(module: Any) -> Iterator[Any]:
    for value in vars(module).values():
        if isinstance(value, triton.JITFunction) and value.fn.__module__ == module.__name__:
            yield value


def _named(function: Any) -> dict[str, Any]:
    """What a function's code names of its module."""
    names = {i.argval for i in dis.Bytecode(function.fn) if i.opname == "LOAD_GLOBAL"}
    own = function.fn.__globals__
    return {name: own[name] for name in names if name in own}


KERNELS = [f for module in _modules() for f in _functions(module)]


def test_kernels_are_found() -> None:
    assert len({f.fn.__module__ for f in KERNELS}) > 10


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda f: f"{f.fn.__module__}.{f.fn.__name__}")
def test_the_copy_names_what_the_kernel_names(kernel: Any, tmp_path: Any) -> None:
    path = tmp_path / "copied_by_inductor.py"
    path.write_text(HEAD + "@triton.jit\n" + source_of(kernel))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    copy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    todo, seen = [kernel], {kernel.fn.__name__: kernel}
    while todo:
        function = todo.pop()
        for name, value in _named(function).items():
            assert seen.setdefault(name, value) is value, f"{name} means two things"
            if isinstance(value, triton.JITFunction):
                assert isinstance(vars(copy).get(name), triton.JITFunction), name
                todo.append(value)
            elif isinstance(value, triton.language.constexpr):
                assert vars(copy)[name].value == value.value, name
            elif name != "triton":
                assert name in vars(copy) or hasattr(builtins, name), name
