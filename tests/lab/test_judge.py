"""fuselab judge: no cheat gets a time without its name, no honest solution is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from fuselab.command_line.cli import command
from fuselab.judge import source
from fuselab.judge.find import Files, find
from fuselab.judge.record import MEANING, Finding, Outcome
from fuselab.judge.verdict import Looked, runs, verdict
from fuselab.model import ISOLATED, Accuracy, Group, Measurement, Status
from fuselab.planning.plan import PlanError
from fuselab.worker.operators import pairs
from fuselab.worker.operators.pair_inputs import Drawn, PairError, seeded, vary
from fuselab.worker.operators.pairs import Pair
from fuselab.worker.tensors.contents import mix
from fuselab.worker.tensors.problem import build

JUDGED = Path(__file__).with_name("judged")
PAIRS = find(str(JUDGED), None)
CPU = torch.device("cpu")
# What a loaded machine adds to a verdict.
LOAD = {"noisy", "untimed"}
FEW = (
    "cheats/norm/exits",
    "cheats/norm/falls_back",
    "cheats/norm/rewrites_problem",
    "honest/rows/c",
)


def marked(path: str, word: str) -> str:
    """Return what a solution's comment says after `# word: `, or ""."""
    lines = Path(path).read_text().splitlines()
    return next((x.partition(": ")[2] for x in lines if x.startswith(f"# {word}: ")), "")


def able(files: Files) -> bool:
    return marked(files.solution, "device") in ("", "cuda" if torch.cuda.is_available() else "cpu")


def judged(lab: Any, chosen: Iterable[Files], folder: Path) -> tuple[int, dict[str, Any]]:
    """Return the exit code and the verdicts by name, on copies: one solution rewrites files."""
    for files in chosen:
        for path in (files.problem, files.solution):
            place = folder / "pairs" / Path(path).relative_to(JUDGED)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, place)
    options = ("--precision", "quick", "--no-compile", "--out", str(folder / "out"))
    code = lab("judge", str(folder / "pairs"), *options)
    found = json.loads((folder / "out" / "judge.json").read_text())["verdicts"]
    return code, {one["name"]: one for one in found}


def here(*arguments: str) -> int:
    return command(arguments)


def assert_as_marked(files: Files, found: dict[str, Any]) -> None:
    """Hold a verdict against the solution's first line: the outcome, names, words of reasons."""
    outcome, *names = marked(files.solution, "judged").split()
    told, warned = " ".join(found["reasons"]), {warning["name"] for warning in found["warnings"]}
    assert found["outcome"] == outcome, (told, warned)
    for name in names:
        assert name in warned or name in told, (name, told, warned)
    assert ("solution" in found["times"]) == (outcome == "right")
    if outcome == "right":
        assert warned <= {*names, *LOAD}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: Any) -> tuple[int, dict[str, Any]]:
    return judged(here, filter(able, PAIRS), tmp_path_factory.mktemp("whole"))


@pytest.mark.long
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("files", PAIRS, ids=lambda files: files.name)
def test_a_pair_gets_its_verdict_and_its_name(whole: Any, files: Files) -> None:
    if not able(files):
        pytest.skip(f"of {marked(files.solution, 'device')} alone")
    assert_as_marked(files, whole[1][files.name])


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_a_folder_is_judged_to_its_end(whole: Any) -> None:
    assert whole[0] == 1
    assert list(whole[1]) == [files.name for files in PAIRS if able(files)]


def test_there_are_twenty_of_each() -> None:
    counts = [sum(files.name.startswith(kind) for files in PAIRS) for kind in ("honest", "cheats")]
    assert min(counts) >= 20


@pytest.mark.slow
def test_a_few_pairs(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    chosen = [files for files in PAIRS if files.name in FEW]
    code, found = judged(here, chosen, tmp_path)
    assert code == 1
    for files in chosen:
        assert_as_marked(files, found[files.name])
    copy = tmp_path / "pairs" / "cheats" / "norm" / "problem.py"
    assert copy.read_text() == (JUDGED / "cheats" / "norm" / "problem.py").read_text()
    page = (tmp_path / "out" / "judge.html").read_text()
    assert all(name in page for name in found)
    printed = capfd.readouterr().out
    assert "2 refused, 2 right" in printed
    assert MEANING["rewritten"] in printed


@pytest.mark.slow
def test_a_problem_at_fault_is_unjudged(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "problem.py").write_text("def get_inputs():\n    return []\n")
    (tmp_path / "solution.py").write_text("")
    paths = [str(tmp_path / name) for name in ("problem.py", "solution.py")]
    assert command(["judge", *paths, "--out", str(tmp_path / "out"), "--json"]) == 3
    (found,) = json.loads(capfd.readouterr().out)
    assert found["outcome"] == "unjudged"
    assert "has no Model" in found["reasons"][0]


@pytest.mark.parametrize(
    ("problem", "solution", "words"),
    [("gone.py", None, "SOLUTION: got none"), ("gone.py", "b.py", "PROBLEM: got 'gone.py'"),
     ("a.py", "gone.py", "SOLUTION: got 'gone.py'"), (".", None, "expected problem.py")],
)  # fmt: skip
def test_what_is_no_pair_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: str, solution: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.py").touch()
    with pytest.raises(PlanError, match=words.replace("(", r"\(")):
        find(problem, solution)


def test_two_folders_pair_files_of_the_same_name(tmp_path: Path) -> None:
    for folder, names in (("problems", "ab"), ("solutions", "bc")):
        (tmp_path / folder).mkdir()
        for name in names:
            (tmp_path / folder / f"{name}.py").touch()
    (found,) = find(str(tmp_path / "problems"), str(tmp_path / "solutions"))
    assert (found.name, Path(found.problem).parent.name) == ("b", "problems")


def drawn(*values: Any) -> Drawn:
    return Drawn(lambda: list(values), CPU)


def test_constants_are_drawn_anew_in_their_range() -> None:
    mask = torch.full((9, 9), float("-inf")).triu(1)
    inputs = Drawn(lambda: [torch.randn(7), torch.full((5,), 4.0), mask, torch.arange(6), 3], CPU)
    assert inputs.constants == ("x1", "x2", "x3")
    ones, others = (inputs.inputs(torch.Generator().manual_seed(seed)) for seed in (1, 2))
    for name in ("x0", "x1", "x2", "x3"):
        assert not torch.equal(ones[name], others[name])
    assert ones["x1"].min() >= 2
    assert ones["x1"].max() <= 6
    assert torch.equal(ones["x2"].isfinite(), mask.isfinite())
    assert sorted(ones["x3"].tolist()) == list(range(6))
    assert ones["x4"] == 3
    assert torch.equal(inputs.under(5, constants=True)["x1"], torch.full((5,), 4.0))


def test_inputs_of_another_kind_are_named() -> None:
    with pytest.raises(PairError, match=r"get_inputs\(\)\[1\]: got a dict"):
        drawn(torch.ones(2), {})
    with pytest.raises(PairError, match="got a Tensor, expected a list"):
        Drawn(lambda: torch.ones(2), CPU)


def test_what_has_no_finite_value_stays() -> None:
    empty, infinite = torch.empty(0), torch.full((3,), float("inf"))
    assert torch.equal(vary(infinite), infinite)
    assert vary(empty).shape == (0,)


def test_a_seed_leaves_the_generators_as_they_were() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    with seeded(11):
        first = torch.rand(4)
    with seeded(11):
        assert torch.equal(torch.rand(4), first)
    assert torch.equal(torch.get_rng_state(), before)


def of(name: str) -> Pair:
    (files,) = (files for files in PAIRS if files.name == name)
    return Pair(files.problem, files.solution, 5, "cpu")


def test_a_pair_is_an_operator_whose_reference_is_model_in_fp64() -> None:
    spec = pairs.spec(Pair.of(of("honest/mlp/packed").source))
    inputs = spec.inputs(spec.cases[0], torch.float32, CPU, torch.Generator().manual_seed(2))
    (exact,) = spec.reference(**inputs)
    results = [impl.fn(**inputs) for impl in spec.implementations]
    assert exact.dtype == torch.float64
    for y in results:
        assert y.dtype == torch.float32
        assert (y - exact).abs().max() < 1e-5 * exact.abs().max()
        assert (y - exact).abs().max() > 0


def test_the_solution_gets_models_weights_where_names_agree(tmp_path: Path) -> None:
    text = Path(of("honest/mlp/same").solution).read_text()
    file = tmp_path / "other.py"
    made = "super().__init__()\n"
    file.write_text(text.replace(made, f"{made}        torch.rand(3)\n", 1).replace(
        "import torch.nn.functional", "import torch\nimport torch.nn.functional"))  # fmt: skip
    problem = pairs.Problem(Pair(of("honest/mlp/same").problem, str(file), 5, "cpu"))
    mine, theirs = pairs.solution(problem).state_dict(), problem.model.state_dict()
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


def test_inputs_with_a_structure_are_never_mixed() -> None:
    pair = of("honest/triangular/halves")
    group = Group("pair", "fresh", "float32", "fwd", "contiguous", "cpu", (), pair.source)
    problem = build(group, lambda *event: None)
    problem.grow(2)
    before = [held.inputs["x0"].clone() for held in problem.sets]
    problem.renew(2, shuffle=True)
    for held, was in zip(problem.sets, before, strict=True):
        x = held.inputs["x0"]
        assert torch.equal(x, x.tril())
        assert (x != was).sum() > was.numel() / 3
    assert problem.written() == ()
    problem.sets[0].inputs["x0"].add_(1)
    problem.sets[1].inputs["x0"].add_(1)
    assert problem.written() == ("x0",)
    mixed = mix({"x": before[0]}, {"x": before[1] + 1})["x"][0]
    assert mixed.numel() < before[0].numel()


def measurement(impl: str, *us: float, status: Status = Status.OK, why: str = "") -> Measurement:
    cell = Group("pair", "fresh", "float32", "fwd", "contiguous", "cpu", (impl,)).cell(impl)
    accuracy = Accuracy(0.0, 0.0, 0.0, max_eps=1.0)
    return Measurement(cell, status, why, samples_us=us, timer=ISOLATED, accuracy=accuracy)


def known(solution: Measurement, outside: Measurement, *findings: Finding, **model: Any) -> Any:
    """Return the verdict on a solution; Model takes 100 us by both clocks, or `beside` it."""
    eager = measurement("eager", 99, 100, 101)
    looked = Looked({"dtype": "float32", "operators": {"aten::mm": 1}}, findings, {"aten::mm": 2})
    return verdict(Files("a", "p", "s"), "cpu", looked, {"eager": eager, "solution": outside},
                   {"eager": model.get("beside", eager), "solution": solution})  # fmt: skip


def test_clocks_that_disagree_are_named() -> None:
    fast, slow = measurement("solution", 9, 10, 11), measurement("solution", 79, 80, 81)
    assert known(fast, fast).names == ()
    found = known(fast, slow)
    assert found.names == ("clocks",)
    assert "10 times Model's speed, 1.25 outside" in str(found.warnings[0])
    assert found.speedups["eager"].low <= 10 <= found.speedups["eager"].high


def test_a_loaded_machine_is_no_reason_to_refuse() -> None:
    fast = measurement("solution", 9, 10, 11)
    why = "20 calls took -3.1 us more than none (isolated)"
    found = known(fast, measurement("solution", status=Status.INVALID, why=why))
    assert (found.outcome, found.names) == (Outcome.RIGHT, ("untimed",))
    other = measurement("solution", status=Status.INVALID, why="overwrote its input x0")
    assert known(fast, other).outcome is Outcome.REFUSED


def test_what_is_seen_refuses_or_warns() -> None:
    fast = measurement("solution", 9, 10, 11)
    refused = known(fast, fast, Finding("replaced", "torch.equal"))
    assert (refused.outcome, refused.times) == (Outcome.REFUSED, {})
    assert refused.reasons == ("invalid: it replaces functions of Python or torch: torch.equal",)
    warned = known(fast, fast, Finding("model"))
    assert (warned.outcome, warned.names) == (Outcome.RIGHT, ("model",))


def test_a_solution_beside_which_model_is_wrong_is_refused() -> None:
    fast = measurement("solution", 9, 10, 11)
    wrong = measurement("eager", status=Status.INCORRECT, why="out0: error 9")
    found = known(fast, fast, beside=wrong)
    assert found.outcome is Outcome.REFUSED
    assert found.reasons == (
        "invalid: in one process with it Model itself is incorrect: out0: error 9",
    )


def test_a_process_that_ended_early_is_an_error_of_the_solution() -> None:
    looked = Looked.of([{"problem": {"dtype": "float32"}}, {"finding": ["catches", ""]}], "code 0")
    assert (looked.raised, looked.fault) == ("code 0", "")
    assert Looked.of([], "not done after 600 s").fault == "not done after 600 s"


@pytest.mark.parametrize(
    ("operators", "what"),
    [({"aten::mm": 1, "aten::view": 2}, "native"), ({"aten::empty_like": 1}, "own"), ({}, "own"),
     ({"aten::mm": 1, "mine::mm": 1}, "own"), ({"Torch-Compiled Region: 0/0": 1}, "compiled"),
     (None, "")],
)  # fmt: skip
def test_what_a_solution_runs(operators: Any, what: str) -> None:
    assert runs(operators) == what


def test_exceptions_that_are_caught_where_it_computes(tmp_path: Path) -> None:
    file = tmp_path / "s.py"
    caught = "try:\n    import a\nexcept ImportError:\n    a = None\n"
    within = "\n".join(f"    {line}" for line in caught.splitlines())
    file.write_text(
        f"{caught}class A:\n  def __init__(self):\n{within}\n  def f(self):\n{within}\n"
    )
    assert source.catches(str(file)) == [12]
