"""`fuselab --help`: verbs in groups, examples that parse; and what a shell's Tab offers."""

from __future__ import annotations

import shlex
import subprocess
import sys

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from fuselab.command_line.cli import cli
from fuselab.command_line.verbs import EXAMPLES, GROUPS

LINES = [(verb, line) for verb, lines in EXAMPLES.items() for line in lines]


def offered(*args: str, incomplete: str = "") -> list[str]:
    found = ShellComplete(cli, {}, "fuselab", "_FUSELAB_COMPLETE").get_completions(
        list(args), incomplete
    )
    return [item.value for item in found if item.type == "plain"]


def test_every_verb_has_a_group_and_examples() -> None:
    grouped = [name for names in GROUPS.values() for name in names]
    assert sorted(grouped) == sorted(cli.commands) == sorted(EXAMPLES)


def test_help_cuts_no_sentence() -> None:
    said = CliRunner().invoke(cli, ["--help"], terminal_width=60).output
    assert "..." not in said.partition("\n")[2]
    assert [line for line in said.splitlines() if line.rstrip(":") in GROUPS] == [
        f"{title}:" for title in GROUPS
    ]


@pytest.mark.parametrize(("verb", "line"), LINES, ids=[line for _, line in LINES])
def test_examples_parse(verb: str, line: str) -> None:
    assert line in CliRunner().invoke(cli, [verb, "--help"]).output
    words = shlex.split(line.removeprefix('eval "$(').removesuffix(')"').partition(" > ")[0])
    assert words[:2] == ["fuselab", verb]
    with cli.commands[verb].make_context(verb, words[2:]):
        pass


def test_tab_offers_operators_cases_and_implementations() -> None:
    assert offered(incomplete="comp") == ["compare", "compile-bench", "completion"]
    assert offered("check", incomplete="soft") == ["softmax", "softmax_backward"]
    assert "cpu" in offered("run", "softmax", "--impl")
    assert offered("run", "rms_norm", "--suite", incomplete="seed") == ["seed-rmsnorm"]
    assert "4x2048x4096" in offered("profile", "rms_norm", "--case", incomplete="4x20")
    assert offered("run", "--dtype", incomplete="b") == ["bf16"]
    assert offered("hlo", incomplete="norm") == ["norm_chain"]
    assert offered("new", "--style") == ["stable", "classic"]


def test_operators_are_offered_without_an_import_of_torch() -> None:
    code = (
        "import sys; from click.shell_completion import ShellComplete;"
        "from fuselab.command_line.cli import cli;"
        "found = ShellComplete(cli, {}, 'fuselab', 'X').get_completions(['check'], 'rms');"
        "assert found and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(shell: str) -> None:
    done = CliRunner().invoke(cli, ["completion", shell])
    assert done.exit_code == 0
    assert "_FUSELAB_COMPLETE" in done.output
