"""Which files are pairs of a problem and a solution."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fuselab.planning.plan import PlanError

PROBLEM = "problem.py"


@dataclass(frozen=True)
class Files:
    """The files of a pair, and its name: where the solution lies in the folder that was given."""

    name: str
    problem: str
    solution: str


def find(problem: str, solution: str | None) -> list[Files]:
    """Return the pairs of two files, of two folders by the same names, or of one folder.

    In one folder, a file `problem.py` is the problem of all other Python files beside it. Raises
    PlanError for what is not there, and where there is no pair.
    """
    given = Path(problem)
    if solution is None:
        if not given.is_dir():
            raise PlanError(
                f"SOLUTION: got none for {problem!r}, expected a file or PROBLEM a folder"
            )
        found = _of_folder(given)
    elif given.is_dir() and Path(solution).is_dir():
        found = _of_folders(given, Path(solution))
    else:
        for argument, path in (("PROBLEM", problem), ("SOLUTION", solution)):
            if not Path(path).is_file():
                raise PlanError(f"{argument}: got {path!r}, expected a Python file")
        found = [Files(Path(solution).stem, str(given.resolve()), str(Path(solution).resolve()))]
    if not found:
        raise PlanError(f"PROBLEM: got {problem!r}, expected {PROBLEM} with solutions beside it")
    return found


def _of_folder(folder: Path) -> list[Files]:
    return [
        _named(folder, beside, file)
        for file in _python(folder)
        if file.name != PROBLEM and (beside := file.with_name(PROBLEM)).is_file()
    ]


def _of_folders(problems: Path, solutions: Path) -> list[Files]:
    found = [
        _named(solutions, problem, file)
        for file in _python(solutions)
        if (problem := problems / file.relative_to(solutions)).is_file()
    ]
    if not found:
        raise PlanError(f"SOLUTION: got {str(solutions)!r}, expected names as in {str(problems)!r}")
    return found


def _python(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*.py") if not file.name.startswith("_"))


def _named(folder: Path, problem: Path, solution: Path) -> Files:
    name = solution.relative_to(folder).with_suffix("").as_posix()
    return Files(name, str(problem.resolve()), str(solution.resolve()))
