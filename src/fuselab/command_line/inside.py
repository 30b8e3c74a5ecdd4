"""The command line of what shows the framework from inside: trace, explain, hlo, new, ..."""

from __future__ import annotations

from typing import Any

import click

from fuselab.command_line import completion
from fuselab.command_line.options import as_json, device, timeout
from fuselab.precision import LEVELS, STANDARD

_subjects = click.argument(
    "subjects", metavar="[SUBJECT]...", nargs=-1, shell_complete=completion.operators
)
_two_processes = click.option(
    "--timeout",
    type=click.IntRange(min=10),
    default=600,
    show_default=True,
    help="Seconds for each of the two processes.",
)


@click.command()
@click.argument("function", metavar="FUNCTION", required=False)
@click.option("--list", "names", is_flag=True, help="Print the shipped examples.")
@click.option("--out", metavar="DIR", help="Write DIR/explain-FUNCTION.html too.")
@device
@timeout
@as_json
def explain(function: str | None, **options: Any) -> int:
    """Say what torch.compile makes of a function: breaks, recompilations, kernels, differences.

    FUNCTION is FILE.py:FUNCTION, which is run, or the name of a shipped example. It is called as it
    is, compiled for each size and compiled for any size, in a process with caches of its own.
    """
    from fuselab.commands.inside import explain as verb

    return verb.run(function, **options)


@click.command()
@click.argument("problem", metavar="PROBLEM")
@click.argument("solution", metavar="[SOLUTION]", required=False)
@click.option("--out", metavar="DIR", default="out/judge", show_default=True)
@click.option(
    "--precision",
    type=click.Choice(list(LEVELS)),
    default=STANDARD,
    show_default=True,
    help="How well medians must be known.",
)
@click.option("--no-compile", is_flag=True, help="Leave out the compiled baseline.")
@device
@timeout
@as_json
def judge(problem: str, solution: str | None, no_compile: bool, **options: Any) -> int:
    """Judge somebody's kernel in KernelBench's form: right, proven, timed, cheats named.

    PROBLEM has Model, get_inputs and get_init_inputs, SOLUTION ModelNew; both files are run. Two
    folders: files of the same names. PROBLEM alone, a folder: each problem.py is of the files
    beside it. Exit code 1 if one is refused, 3 if none can be judged. DIR/judge.html, judge.json.
    """
    from fuselab.commands.others import judge as verb

    return verb.run(problem, solution, compiled=not no_compile, **options)


@click.command()
@click.argument("name", metavar="NAME")
@click.option(
    "--style",
    type=click.Choice(["stable", "classic"]),
    default="stable",
    show_default=True,
    help="stable: CMake and LibTorch's stable ABI, one binary for many versions of torch and"
    " Python. classic: setup.py, CUDAExtension and pybind11.",
)
@click.option("--dir", "folder", metavar="DIR", help="Default: NAME.")
def new(name: str, style: str, folder: str | None) -> int:
    """Write a package with an operator of your own: C++, CUDA, Triton, tests, spec, CI."""
    from fuselab.commands import new as verb

    return verb.run(name, style=style, folder=folder)


@click.command("train-bench")
@click.option("--size", type=click.Choice(["small", "medium", "full"]), default="small")
@click.option("--steps", type=click.IntRange(min=1), default=30, show_default=True)
@click.option("--variant", "variants", multiple=True, help="eager, jax, ...; default: all.")
@click.option("--out", metavar="DIR", help="Write table, record and loss curves.")
@device
@timeout
@as_json
def train_bench(**options: Any) -> int:
    """Train a small Llama alike in PyTorch (eager, compiled, with our norms) and in JAX.

    Exit code 1 if a variant fails, or the losses of an fp32 size differ by more than 1e-5 at any
    step.
    """
    from fuselab.commands.inside import train_bench as verb

    return verb.run(**options)


@click.command()
@click.argument("call", metavar="CALL")
@click.option("--setup", metavar="FILE", help="Python file, run for the names that CALL uses.")
@click.option(
    "--under",
    multiple=True,
    type=click.Choice(["autocast", "inference_mode", "no_grad"]),
    help="Run CALL within this context; may be repeated.",
)
@click.option(
    "--depth",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="Events within this many others are shown; JSON and page have all.",
)
@click.option("--out", metavar="DIR", help="Write DIR/trace.html too.")
@device
@as_json
def trace(call: str, **options: Any) -> int:
    """Walk one call from the Python function to the kernel, forward and backward.

    CALL is a Python expression, which is run; x (4 x 64), w (64), torch, F, nn and fuseline are
    there: fuselab trace "F.rms_norm(x, (64,), w)".
    """
    from fuselab.commands.inside import trace as verb

    return verb.run(call, **options)


@click.command()
@click.option(
    "--folder",
    metavar="DIR",
    default="framework-internals",
    show_default=True,
    help="A source checkout's folder of that name.",
)
@click.option("--only", multiple=True, metavar="NAME", help="One of them; may be repeated.")
@click.option("--out", metavar="DIR", default="out/internals", show_default=True)
def internals(**options: Any) -> int:
    """Run every folder of framework-internals anew, and write an index of what they made."""
    from fuselab.commands.inside import internals as verb

    return verb.run(**options)


@click.command("compile-bench")
@_subjects
@_two_processes
@click.option("--out", metavar="DIR", help="Write DIR/compile-bench-*.md and .json too.")
@device
@as_json
def compile_bench(**options: Any) -> int:
    """Compile every operator's formula and common blocks: seconds cold and warm, kernels, times.

    SUBJECT is an operator, mlp_block, attention_block, norm_residual or attention_pytorch;
    default: all.
    """
    from fuselab.commands.inside import compile_bench as verb

    return verb.run(**options)


@click.command()
@_subjects
@_two_processes
@click.option("--out", metavar="DIR", help="Write DIR/candidates.md and .json too.")
@device
@as_json
def candidates(**options: Any) -> int:
    """Show what the inductor's tuner tries for each kernel, max-autotune off and on, on a GPU.

    Ten tunings each. SUBJECT as compile-bench has them; default: all.
    """
    from fuselab.commands.inside import candidates as verb

    return verb.run(**options)


@click.command()
@click.argument("op", metavar="OP", shell_complete=completion.operators)
@click.option("--case", metavar="NAME", help="Problem size; default: the operator's first.")
@click.option("--dtype", metavar="NAME", help="Default: float32.")
@click.option("--direction", metavar="fwd|bwd", help="Default: both.")
@click.option("--out", metavar="DIR", help="Write DIR/hlo.html too.")
@device
@as_json
def hlo(op: str, **options: Any) -> int:
    """Show what XLA makes of an operator's formula in JAX: fusions, custom calls, bytes, memory.

    Needs the extra jax. Compiles and runs nothing; the JSON and the page hold both HLO texts.
    """
    from fuselab.commands.inside import hlo as verb

    return verb.run(op, **options)


@click.group()
def study() -> None:
    """Repeat what the study of fusion did: its methods of measuring, on the same cells."""


@study.command()
@click.option(
    "--op",
    metavar="OP",
    default="softmax",
    show_default=True,
    help="One with the suite fusion.",
    shell_complete=completion.operators,
)
@click.option(
    "--sizes",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    help="Of the suite fusion, each in eager and compiled.",
)
@click.option("--repeats", type=click.IntRange(min=2), default=5, show_default=True)
@click.option("--out", metavar="DIR", help="Write DIR/methods-*.md and .jsonl too.")
@click.option(
    "--timeout",
    type=click.IntRange(min=10),
    default=900,
    show_default=True,
    help="Seconds for the process that measures.",
)
@device
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines.")
def methods(**options: Any) -> int:
    """Time the same cells by each method: its bias beside the lab's timer, its scatter, its cause.

    float32, forward. On a GPU pytest-benchmark's way with and without waiting and emptying the
    cache, events, do_bench, a CUDA graph, Nsight Compute; on a CPU those that exist there.
    """
    from fuselab.commands.inside import study as verb

    return verb.methods(**options)


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("script", metavar="SCRIPT", required=False)
@click.argument("arguments", metavar="[ARGS]...", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--from",
    "source",
    metavar="FILE",
    help="Instead of SCRIPT: a trace of torch.profiler with shapes (.json, .json.gz), TraceLens's "
    "unified_perf_summary.csv, flashinfer-bench's workloads (.jsonl).",
)
@click.option("--out", metavar="DIR", default="out/scan", show_default=True, help="Where to write.")
@click.option("--suite", metavar="FILE", help="Write the calls, for fuselab run --suite FILE, too.")
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    help="How many steps are timed: plain, patched, and plain again.",
)
@click.option(
    "--with",
    "ways",
    type=click.Choice(["patch", "enable"]),
    multiple=True,
    default=("patch", "enable"),
    show_default=True,
    help="What is applied to the script's modules.",
)
@click.option("--no-apply", is_flag=True, help="Forecast only.")
@click.option("--no-compile", is_flag=True, help="Leave torch.compile of the calls out.")
@click.option("--precision", type=click.Choice(list(LEVELS)), default="quick", show_default=True)
@click.option(
    "--timeout",
    type=click.IntRange(min=1, max=86400),
    default=900,
    show_default=True,
    help="Seconds that one run of the script, or one step of a measurement, may take.",
)
@device
@as_json
def scan(
    script: str | None,
    arguments: tuple[str, ...],
    no_apply: bool,
    no_compile: bool,
    **options: Any,
) -> int:
    """Rank a script's calls by time lost, forecast what our operators bring, apply, compare.

    SCRIPT is run as Python would run it, with ARGS, several times, each until enough of its steps
    are known; options come before SCRIPT. A step: `with fuselab.scan.step():` of the script, else
    from one optimizer.step() to the next, else a call of a module that no other calls.
    Exit code 1 if the script fails. DIR/scan.html, scan.json, suite.json and the traces.
    """
    from fuselab.commands.others import scan as verb

    return verb.run(script, arguments, apply=not no_apply, compiled=not no_compile, **options)


VERBS = (
    judge,
    scan,
    trace,
    explain,
    compile_bench,
    candidates,
    study,
    hlo,
    train_bench,
    internals,
    new,
)
