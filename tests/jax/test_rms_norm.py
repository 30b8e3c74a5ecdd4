"""fuseline.jax.rms_norm: C++ kernels through jax.ffi, against fp64."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402
from jax.test_util import check_grads  # noqa: E402

from fuseline.jax import rms_norm  # noqa: E402

EPS = 1e-6
LIMIT = {"float64": 1e-14, "float32": 1e-6, "float16": 2e-3, "bfloat16": 1.6e-2}


@pytest.fixture(autouse=True)
def _fp64():
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


def oracle(x, weight):
    x, weight = (jnp.asarray(t, jnp.float64) for t in (x, weight))
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + EPS) * weight


def drawn(*shape, dtype="float64"):
    return jnp.asarray(np.random.default_rng().standard_normal(shape), dtype)


def check_against_fp64(shape, dtype, weight_dtype, device):
    x, dy = (jax.device_put(drawn(*shape, dtype=dtype), device) for _ in range(2))
    weight = jax.device_put(drawn(shape[-1], dtype=weight_dtype), device)
    limit = LIMIT[dtype]
    y, vjp = jax.vjp(jax.jit(rms_norm), x, weight)
    expected, vjp64 = jax.vjp(oracle, *(t.astype(jnp.float64) for t in (x, weight)))
    assert (y.shape, y.dtype, y.devices()) == (x.shape, x.dtype, {device})
    np.testing.assert_allclose(y.astype(jnp.float64), expected, rtol=limit, atol=limit)
    for ours, theirs in zip(vjp(dy), vjp64(dy.astype(jnp.float64)), strict=True):
        scale = 4 * max(limit, LIMIT[ours.dtype.name]) * (float(jnp.abs(theirs).max()) + 1)
        np.testing.assert_allclose(ours.astype(jnp.float64), theirs, rtol=0, atol=scale)


SHAPES = [(64,), (3, 7), (2, 5, 1031), (300, 33), (1, 1)]


@pytest.mark.parametrize("dtype", LIMIT)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_values_and_gradients(shape, dtype):
    check_against_fp64(shape, dtype, dtype, jax.devices("cpu")[0])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", LIMIT)
@pytest.mark.parametrize("shape", [*SHAPES, (4096, 4096), (3, 300_001)], ids=str)
def test_values_and_gradients_on_a_gpu(shape, dtype):
    for weight_dtype in dict.fromkeys((dtype, "float32")):
        check_against_fp64(shape, dtype, weight_dtype, jax.devices("gpu")[0])


def test_numeric_gradients():
    check_grads(rms_norm, (drawn(3, 7), drawn(7)), order=1, modes=["rev"])


def test_without_a_weight_and_with_one_of_float32():
    x, weight = drawn(5, 65, dtype="bfloat16"), drawn(65, dtype="float32")
    for w, factor in ((None, jnp.ones(65)), (weight, weight)):
        y = rms_norm(x, w).astype(jnp.float64)
        np.testing.assert_allclose(y, oracle(x, factor), rtol=1.6e-2, atol=1e-2)


def test_no_rows():
    x, weight = jnp.zeros((0, 8)), drawn(8)
    assert rms_norm(x, weight).shape == (0, 8)
    dweight = jax.grad(lambda w: rms_norm(x, w).sum())(weight)
    np.testing.assert_array_equal(dweight, np.zeros(8))


def test_vmap_is_as_the_calls_one_by_one():
    x, weight = drawn(4, 3, 16), drawn(16)
    together = jax.vmap(rms_norm, in_axes=(0, None))(x, weight)
    np.testing.assert_allclose(together, rms_norm(x, weight), rtol=1e-14)


def test_it_is_a_custom_call_of_the_program():
    lowered = jax.jit(rms_norm).lower(drawn(4, 8), drawn(8))
    assert "fuseline_jax_rms_norm_fwd" in lowered.compile().as_text()


def test_forward_mode_is_refused():
    with pytest.raises(TypeError, match="jvp"):
        jax.jvp(rms_norm, (drawn(4, 8), drawn(8)), (drawn(4, 8), drawn(8)))


@pytest.mark.parametrize(
    ("x", "weight", "error", "match"),
    [
        (jnp.zeros((4, 8), jnp.int32), None, TypeError, "x is int32, expected one of float64"),
        ([1.0, 2.0], None, TypeError, "x is list, expected an array"),
        (jnp.zeros((4, 8)), [1.0] * 8, TypeError, "weight is list, expected an array"),
        (jnp.float32(1), None, ValueError, r"shape \(\), expected a last dimension"),
        (jnp.zeros((4, 0)), None, ValueError, r"shape \(4, 0\), expected a last dimension"),
        (jnp.zeros((4, 8)), jnp.zeros(7), ValueError, r"shape \(7,\), expected \(8,\)"),
        (jnp.zeros((4, 8)), jnp.zeros(8, jnp.float16), TypeError, "float16, expected float"),
    ],
)
def test_errors_name_the_argument(x, weight, error, match):
    with pytest.raises(error, match=match):
        rms_norm(x, weight)


def test_without_a_compiler_it_says_what_to_do(tmp_path):
    code = "import jax.numpy as j, fuseline.jax as f; f.rms_norm(j.ones((2, 4)))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"CXX": str(tmp_path / "none"), "PATH": "/usr/bin"}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "needs a C++ compiler" in done.stderr
    assert "set CXX" in done.stderr
