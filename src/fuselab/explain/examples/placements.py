"""The seed's three places for torch.compile around a LayerNorm that is made anew or once."""

import torch

SIZES = (1, 2, 3)
COLUMNS = 64
_once: dict[str, torch.nn.Module] = {}


def inputs(size, device):
    return (torch.randn(8, COLUMNS, device=device),)


def compiled_inside(x):
    fn = torch.nn.LayerNorm([COLUMNS], device=x.device)
    return torch.compile(fn)(x)


def made_inside(x):
    fn = torch.nn.LayerNorm([COLUMNS], device=x.device)
    return fn(x)


def compiled_once(x):
    key = str(x.device)
    if key not in _once:
        _once[key] = torch.compile(torch.nn.LayerNorm([COLUMNS], device=x.device))
    return _once[key](x)
