"""The elementary functions of vector_math.h and tiles of rows, for each instruction set."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

HERE = Path(__file__).parent
INCLUDE = HERE.parents[1] / "src/fuseline/primitives/include"
CXX = os.environ.get("CXX") or shutil.which("c++") or ""
FLAGS = {
    "default": "",
    "avx2": "-mavx2 -mfma -mf16c",
    "avx512": "-mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c",
}
CAPABILITY = {"default": 0, "avx2": 1, "avx512": 2}
MACHINE = {"DEFAULT": 0, "AVX2": 1, "AVX512": 2}.get(torch.backends.cpu.get_cpu_capability(), 0)

pytestmark = pytest.mark.skipif(not CXX, reason="no C++ compiler")


@pytest.fixture(scope="module", params=FLAGS)
def library(request, tmp_path_factory):
    if CAPABILITY[request.param] > MACHINE:
        pytest.skip(f"this processor has no {request.param}")
    binary = tmp_path_factory.mktemp("vector_math") / "functions.so"
    command = [CXX, "-std=gnu++17", "-O2", "-fno-math-errno", "-shared", "-fPIC", f"-I{INCLUDE}"]
    command += [*FLAGS[request.param].split(), HERE / "vector_math.cpp", "-o", binary]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(binary))


def call(library, name: str, x: np.ndarray) -> np.ndarray:
    y = np.empty_like(x)
    function = getattr(library, f"{name}_{'float' if x.dtype == np.float32 else 'double'}")
    function(ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(y.ctypes.data), ctypes.c_int64(x.size))
    return y


def wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64 if x.dtype == np.float32 else np.longdouble)


def worst(got: np.ndarray, want: np.ndarray) -> float:
    """The largest error in ULP of the true result, in subnormal ones where that is subnormal."""
    info = np.finfo(got.dtype)
    exponent = np.maximum(np.frexp(want)[1] - 1, info.minexp)
    return float(np.max(np.ldexp(np.abs(wide(got) - want), info.nmant - exponent)))


def floats_between(low: float, high: float) -> np.ndarray:
    """About a million floats in even steps of their bits."""
    first, last = np.array([low, high], np.float32).view(np.uint32)
    step = max(int(last - first) // 1_000_000, 1) | 1
    return np.arange(first, last, step, dtype=np.uint32).view(np.float32)


def test_exp(library):
    x = floats_between(0.0, 88.722839)
    assert worst(call(library, "exp", x), np.exp(wide(x))) <= 1
    x = -floats_between(0.0, 104.0)
    assert worst(call(library, "exp", x), np.exp(wide(x))) <= 1
    for low, high in ((-746, -708), (-708, 709.78), (-1, 1)):
        x = np.random.default_rng().uniform(low, high, 300_000)
        assert worst(call(library, "exp", x), np.exp(wide(x))) <= 1.5


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_exp_at_its_ends(library, dtype):
    x = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1e30, -1e30], dtype)
    want = [np.inf, 0, np.nan, 1, 1, np.inf, 0]
    np.testing.assert_array_equal(call(library, "exp", x), np.array(want, dtype))


def test_log(library):
    random = np.random.default_rng()
    for x in (random.uniform(1, 4, 300_000), 1 + 2.0 ** random.uniform(-52, 60, 300_000)):
        assert worst(call(library, "log", x), np.log(wide(x))) <= 1
    x = np.array([1.0, 2.0, np.nan])
    np.testing.assert_array_equal(call(library, "log", x), [0.0, np.log(2.0), np.nan])


# The fp64 of less than 1e5 that is closest to a multiple of pi / 2, and its sine's and cosine's.
CLOSEST = 0x16C6CBC45DC8DE * 2.0**-47
NEAREST = {"sin": (8 * CLOSEST, 4.951845092706862e-18), "cos": (CLOSEST, -6.189806365883577e-19)}


@pytest.mark.parametrize("name", NEAREST)
def test_sin_and_cos(library, name):
    oracle = getattr(np, name)
    for low, high in ((0.0, 0.8), (0.8, 1e5), (1e5, 3e38)):
        x = floats_between(low, high)
        x[::2] *= -1
        assert worst(call(library, name, x), oracle(wide(x))) <= 1
    for most in (0.8, 10.0, 1e5, 1e9):
        x = np.random.default_rng().uniform(-most, most, 300_000)
        assert worst(call(library, name, x), oracle(wide(x))) <= 1.5
    x, want = (np.array([v]) for v in NEAREST[name])
    assert worst(call(library, name, x), wide(want)) <= 1.5
    x = np.array([np.inf, -np.inf, np.nan], np.float32)
    assert np.isnan(call(library, name, x)).all()


@pytest.mark.parametrize("count", [1, 15, 17, 32, 63, 64])
@pytest.mark.parametrize("n", [1, 7, 16])
def test_lanes_without_a_row_hold_zeros(library, count, n):
    rows = np.random.default_rng().standard_normal((count, n)).astype(np.float32)
    tile = np.empty((16, 64), np.float32)
    at = (ctypes.c_void_p(a.ctypes.data) for a in (rows, tile))
    library.tile_of.restype = ctypes.c_int64
    lanes = library.tile_of(next(at), ctypes.c_int64(count), ctypes.c_int64(n), next(at))
    reached = -(-count // lanes) * lanes
    np.testing.assert_array_equal(tile[:n, :count], rows.T)
    assert not tile[:n, count:reached].any()
