"""How `fuselab --help` reads: verbs in groups, each with its sentence whole and with examples."""

from __future__ import annotations

import inspect
from typing import Any

import click

from fuselab.command_line import streams

GROUPS = {
    "Measure": (
        *("list", "check", "run", "judge", "report", "show", "plot", "export", "compare"),
        *("scan", "merge", "share", "profile", "tune", "doctor"),
    ),
    "Understand": ("trace", "explain", "compile-bench", "candidates", "study", "hlo"),
    "Build": ("new", "completion"),
    "Course": ("train-bench", "internals"),
}
EXAMPLES = {
    "list": ("fuselab list", "fuselab list softmax --json"),
    "check": (
        "fuselab check rms_norm --level quick",
        "fuselab check my_ops.py --impl mine --dtype bf16",
    ),
    "run": (
        "fuselab run rms_norm --suite quick --out out/run",
        "fuselab run softmax --suite fusion --dtype fp32 --direction fwd",
        "fuselab run my_ops.py --out out/mine --isolate",
        "fuselab run --suite fusion --shard 3/8 --out out/shard-3",
    ),
    "judge": (
        "fuselab judge problem.py solution.py",
        "fuselab judge pairs --out out/judge --precision quick",
    ),
    "scan": (
        "fuselab scan train.py --epochs 1",
        "fuselab scan --out out/scan --suite calls.json train.py",
        "fuselab scan --from trace.json --suite calls.json",
    ),
    "report": (
        "fuselab report out/run",
        "fuselab report out/before out/after",
        "fuselab report out/run --grid out/grid",
    ),
    "plot": ("fuselab plot out/run bandwidth.svg --op rms_norm --dtype bf16",),
    "show": (
        "fuselab show out/run",
        "fuselab show out/run --op softmax --against eager",
        "fuselab show out/run --memory-limit 24GiB",
    ),
    "export": (
        "fuselab export out/run --format csv",
        "fuselab export out/run --format jsonl --samples",
        "fuselab export out/run --format baseline > baseline.jsonl",
        "fuselab export out/run --format parquet --out run.parquet",
    ),
    "compare": (
        "fuselab compare out/before out/after",
        "fuselab compare out/run --impl-a compile --impl-b cuda",
        "fuselab compare out/run --baseline baseline.jsonl --fail-on slower --junit junit.xml",
        "fuselab compare published:study-a100 out/run --op softmax",
    ),
    "merge": ("fuselab merge out/whole out/shard-*",),
    "share": ("fuselab share out/run h100.sqlite",),
    "profile": ("fuselab profile rms_norm --impl cuda --case 4x2048x4096",),
    "tune": ("fuselab tune rms_norm --dtype bf16 --budget 600",),
    "doctor": ("fuselab doctor", "fuselab doctor --device cpu --json"),
    "trace": ('fuselab trace "F.rms_norm(x, (64,), w)" --out out',),
    "explain": (
        "fuselab explain my_file.py:function --out out",
        "fuselab explain attention_pytorch",
    ),
    "compile-bench": ("fuselab compile-bench softmax mlp --out out",),
    "candidates": ("fuselab candidates softmax --out out",),
    "study": (
        "fuselab study methods",
        "fuselab study methods --op layer_norm --device cpu --out out",
    ),
    "hlo": ("fuselab hlo softmax --direction fwd",),
    "new": ("fuselab new my_op", "fuselab new my_op --style classic --dir ops/my_op"),
    "completion": (
        'eval "$(fuselab completion bash)"',
        "fuselab completion fish > ~/.config/fish/completions/fuselab.fish",
    ),
    "train-bench": ("fuselab train-bench --size small --out out",),
    "internals": ("fuselab internals --out out/internals",),
}


class Verbs(click.Group):
    """The group of all verbs; a closed pipe is ours to judge, not click's."""

    def make_context(self, *arguments: Any, **extra: Any) -> click.Context:
        try:
            return super().make_context(*arguments, **extra)
        except BrokenPipeError as error:
            raise streams.ClosedPipeError from error

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise streams.ClosedPipeError from error

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        """Add a verb with its examples at the end of its help."""
        lines = EXAMPLES[name or cmd.name or ""]
        cmd.epilog = "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
        super().add_command(cmd, name)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for names in GROUPS.values() for name in names]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a section a group; a verb's first sentence is wrapped, never cut."""
        for title, names in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name, _sentence(self.commands[name])) for name in names])


def _sentence(verb: click.Command) -> str:
    """Return the first paragraph of a verb's help."""
    return " ".join(inspect.cleandoc(verb.help or "").partition("\n\n")[0].split())
