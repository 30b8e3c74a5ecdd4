"""Random numbers by position, the same on every device: Philox 4x32-10 in torch operations.

Element i has number i % 4 of counter i / 4, as Triton's randint4x(seed, i / 4) gives them; those
of matrices have counters of their own.
Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011.
"""

from typing import List  # noqa: UP035 - torch.jit.script

import torch
from torch import Tensor


def numbers(seed: int, n: int, device: torch.device) -> Tensor:
    """Return the 32-bit numbers of elements 0 to n - 1, as int64.

    In Python the seed may also be a tensor of int64 on the device, (), or (..., 1) for (..., n).
    """
    counter = torch.arange((n + 3) // 4, device=device)
    zero = torch.zeros_like(counter)
    return _rounds(seed, counter & 0xFFFFFFFF, counter >> 32, zero, zero)[..., :n]


def matrix_numbers(
    seed: int, matrices: int, rows: int, columns: int, device: torch.device
) -> Tensor:
    """Return the numbers of matrices, (matrices, rows, columns): element (i, j) of matrix h has
    number j % 4 of the counter (j / 4, i, h, 0).

    In Python the seed may also be a tensor of int64, (), or (..., 1, 1, 1).
    """
    fours = torch.arange((columns + 3) // 4, device=device)
    row = torch.arange(rows, device=device)[:, None]
    matrix = torch.arange(matrices, device=device)[:, None, None]
    zero = torch.zeros_like(fours + row + matrix)
    return _rounds(seed, fours + zero, row + zero, matrix + zero, zero)[..., :columns]


def _rounds(seed: int, a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    """Return the four numbers of each counter, one after the other along the last dimension."""
    low = 0xFFFFFFFF
    key0, key1 = seed & low, (seed >> 32) & low
    for _ in range(10):
        of_a, of_c = a * 0xD2511F53, c * 0xCD9E8D57  # modulo 2^64
        a = ((of_c >> 32) & low) ^ b ^ key0
        c = ((of_a >> 32) & low) ^ d ^ key1
        b, d = of_c & low, of_a & low
        key0, key1 = (key0 + 0x9E3779B9) & low, (key1 + 0xBB67AE85) & low
    return torch.stack([a, b, c, d], -1).flatten(-2)


def threshold(p: float) -> int:
    """Return the number below which an element is dropped, with probability p."""
    return min(int(p * 4294967296.0), 0xFFFFFFFF)


def scale(p: float) -> float:
    """Return the factor of what is kept; the one element in 2^32 that p = 1 leaves is 0 too."""
    return 1.0 / (1.0 - p) if p < 1.0 else 0.0


def dropout_factor(shape: List[int], p: float, seed: int, device: torch.device) -> Tensor:  # noqa: UP006
    """Return what dropout multiplies each element by, in fp64: 0 or 1 / (1 - p).

    The seed is that of `numbers`; of (..., 1) seeds the result is (..., *shape).
    """
    n = 1
    for size in shape:
        n *= size
    keep = numbers(seed, n, device) >= threshold(p)
    lead = list(keep.shape[:-1])
    return keep.view(lead + shape).to(torch.float64) * scale(p)


def matrix_dropout_factor(
    matrices: int, rows: int, columns: int, p: float, seed: int, device: torch.device
) -> Tensor:
    """Return the same for the elements of matrices, with the numbers of `matrix_numbers`."""
    keep = matrix_numbers(seed, matrices, rows, columns, device) >= threshold(p)
    return keep.to(torch.float64) * scale(p)
