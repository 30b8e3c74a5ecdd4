"""Blocks of a transformer as plain functions: MLP, attention with its norm, norm and residual."""

import torch
import torch.nn.functional as F

SIZES = (128,)
WIDTH, HEADS = 256, 4


def mlp_block_inputs(size, device):
    shapes = ((size, WIDTH), (4 * WIDTH, WIDTH), (4 * WIDTH,), (WIDTH, 4 * WIDTH), (WIDTH,))
    return tuple(torch.randn(shape, device=device) * 0.05 for shape in shapes)


def mlp_block(x, up, up_bias, down, down_bias):
    return F.linear(F.gelu(F.linear(x, up, up_bias), approximate="tanh"), down, down_bias)


def attention_block_inputs(size, device):
    shapes = ((2, size, WIDTH), (WIDTH,), (3 * WIDTH, WIDTH), (WIDTH, WIDTH))
    return tuple(torch.randn(shape, device=device) * 0.05 for shape in shapes)


def attention_block(x, weight, qkv, out):
    batch, size, width = x.shape
    h = F.rms_norm(x, (width,), weight, 1e-6)
    q, k, v = F.linear(h, qkv).view(batch, size, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return x + F.linear(mixed.transpose(1, 2).reshape(x.shape), out)


def norm_residual_inputs(size, device):
    x, residual = (torch.randn(8 * size, WIDTH, device=device) for _ in range(2))
    return x, residual, torch.randn(WIDTH, device=device)


def norm_residual(x, residual, weight):
    h = x + residual
    return F.rms_norm(h, (WIDTH,), weight, 1e-6), h
