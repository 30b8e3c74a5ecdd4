"""The seed's five softmaxes: naive and nn.Softmax, each compiled too, and torch.softmax."""

import torch

SIZES = (128, 256)
_module = torch.nn.Softmax(dim=-1)


def inputs(size, device):
    return (torch.randn(size, 1024, device=device),)


def naive_softmax(x):
    shifted = x - x.max(-1, keepdim=True).values
    exps = shifted.exp()
    return exps / exps.sum(-1, keepdim=True)


_compiled_naive = torch.compile(naive_softmax)
_compiled_module = torch.compile(_module)


def compiled_naive_softmax(x):
    return _compiled_naive(x)


def nn_softmax(x):
    return _module(x)


def compiled_nn_softmax(x):
    return _compiled_module(x)


def torch_softmax(x):
    return torch.softmax(x, -1)
