"""Random numbers by position, the same on every device: Philox 4x32-10 in torch operations.

Element i has number i % 4 of counter i / 4, as Triton's randint4x(seed, i / 4) gives them.
Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011.
"""

from typing import List  # noqa: UP035 - torch.jit.script

import torch
from torch import Tensor


def numbers(seed: int, n: int, device: torch.device) -> Tensor:
    """Return the 32-bit numbers of elements 0 to n - 1, as int64.

    In Python the seed may also be a tensor of int64 on the device, (), or (..., 1) for (..., n).
    """
    low = 0xFFFFFFFF
    counter = torch.arange((n + 3) // 4, device=device)
    a, b = counter & low, counter >> 32
    c, d = torch.zeros_like(a), torch.zeros_like(a)
    key0, key1 = seed & low, (seed >> 32) & low
    for _ in range(10):
        of_a, of_c = a * 0xD2511F53, c * 0xCD9E8D57  # modulo 2^64
        a = ((of_c >> 32) & low) ^ b ^ key0
        c = ((of_a >> 32) & low) ^ d ^ key1
        b, d = of_c & low, of_a & low
        key0, key1 = (key0 + 0x9E3779B9) & low, (key1 + 0xBB67AE85) & low
    return torch.stack([a, b, c, d], -1).flatten(-2)[..., :n]


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
