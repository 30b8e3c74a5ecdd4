"""The lab of week 12, all of it: builds both packages, tests, measures, draws."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from time import perf_counter

import torch

HERE = Path(__file__).resolve().parent
LOAD = """
import json, platform, sys, torch
sys.path.insert(0, sys.argv[1])
import rmsnorm_{style} as package
x, w = torch.randn(4, 64), torch.randn(64)
call = package._C.forward if hasattr(package, "_C") else torch.ops.rmsnorm_stable.forward
y = call(x, w, 1e-6)[0]
expected = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w
assert torch.allclose(y, expected, atol=1e-5)
"""


def build(style: str, out: Path, wheels: Path | None) -> dict[str, object]:
    """Build and install a package into OUT/site; return seconds, wheel and size of the binary."""
    pip = [sys.executable, "-m", "pip"]
    seconds = None
    given = list(wheels.glob(f"rmsnorm_{style}-*.whl")) if wheels else []
    if not given:
        shutil.rmtree(HERE / style / "build", ignore_errors=True)  # so that all of it is timed
        begin = perf_counter()
        _run(
            *pip,
            "wheel",
            "-q",
            "--no-build-isolation",
            "--no-deps",
            "-w",
            out / "wheels",
            HERE / style,
        )
        seconds = round(perf_counter() - begin, 1)
    (wheel,) = given or (out / "wheels").glob(f"rmsnorm_{style}-*.whl")
    _run(
        *pip,
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        "--upgrade",
        "--target",
        out / "site",
        wheel,
    )
    (binary,) = (out / "site" / f"rmsnorm_{style}").glob("*.so")
    return {
        "style": style,
        "build, s": seconds,
        "wheel": wheel.name,
        "binary, KB": round(binary.stat().st_size / 1024),
    }


def loads(style: str, site: Path, python: str) -> str:
    """Load a package in another Python with its own torch, and say how that went."""
    versions = (
        "import platform, torch; print(torch.__version__, 'Python', platform.python_version())"
    )
    who = subprocess.run([python, "-c", versions], capture_output=True, text=True, check=False)
    code = LOAD.replace("{style}", style)
    done = subprocess.run(
        [python, "-c", code, str(site)], capture_output=True, text=True, check=False
    )
    last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
    return f"torch {who.stdout.strip()}: {'right' if done.returncode == 0 else last[0]}"


def _run(*command: object, env: dict[str, str] | None = None) -> None:
    subprocess.run([str(part) for part in command], cwd=HERE, env=env, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=HERE / "out")
    parser.add_argument("--quick", action="store_true", help="Few rounds: a look, no figures.")
    parser.add_argument("--wheels", type=Path, help="Take packages that are here as they are.")
    parser.add_argument(
        "--also", action="append", default=[], metavar="PYTHON", help="Load the binaries there too."
    )
    options = parser.parse_args()
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    arch = {}
    if torch.cuda.is_available():
        major, minor = torch.cuda.get_device_capability()
        arch = {"TORCH_CUDA_ARCH_LIST": f"{major}.{minor}", "CUDA_ARCHS": f"{major}{minor}"}
    os.environ.update(arch)
    built = [build(style, out, options.wheels) for style in ("classic", "stable")]
    for row in built:
        row["loads in"] = [
            loads(str(row["style"]), out / "site", python)
            for python in (sys.executable, *options.also)
        ]
    (out / "packages.json").write_text(json.dumps(built, indent=1) + "\n")
    print(json.dumps(built, indent=1))
    path = os.pathsep.join([str(out / "site"), str(HERE), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path}
    _run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", HERE / "test_rmsnorm.py",
         "--import-mode=importlib", "-c", os.devnull, "--rootdir", HERE, env=env)  # fmt: skip
    rounds = ["--rounds", 3] if options.quick else []
    _run(sys.executable, HERE / "binding.py", "--out", out, *rounds, env=env)
    _run(sys.executable, HERE / "benchmark.py", "--out", out, env=env)
    print(f"in {out}: packages.json, binding-*.md, benchmark-*.md and .svg")


if __name__ == "__main__":
    main()
