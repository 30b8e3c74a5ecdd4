"""fuseline.patch on tiny models of transformers' families with random weights: one line each.

    python tools/patch_families.py [DEVICE]

Columns: norms replaced and left alone; largest difference of the logits over the largest logit, and
of the parameters' gradients over each largest gradient; whether 16 greedily generated tokens are
the same; graph breaks under torch.compile before and after. Nothing is downloaded.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import transformers
from torch import Tensor

import fuseline

TINY: dict[str, Any] = {
    "vocab_size": 512, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 16, "pad_token_id": 0,
}  # fmt: skip
FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "phi3", "olmo2")


def off(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).abs().max() / wanted.abs().max().clamp(min=1e-30))


def everything(net: Any, ids: Tensor) -> tuple[Tensor, list[Tensor], Tensor, int]:
    """Return logits, gradients, generated tokens and graph breaks."""
    net.zero_grad()
    logits = net(ids).logits
    logits.square().mean().backward()
    grads = [p.grad.clone() for p in net.parameters() if p.grad is not None]
    words = net.generate(ids, max_new_tokens=16, do_sample=False)
    torch._dynamo.reset()
    breaks = torch._dynamo.explain(net)(ids).graph_break_count
    return logits.detach(), grads, words, breaks


def line(family: str, device: str) -> str:
    config = transformers.AutoConfig.for_model(family, **TINY)
    net: Any = transformers.AutoModelForCausalLM.from_config(config).to(device).eval()
    with torch.no_grad():
        for name, weight in net.named_parameters():
            if "norm" in name:
                weight.copy_(torch.rand_like(weight) + 0.5)
    ids = torch.randint(1, TINY["vocab_size"], (2, 32), device=device)
    logits, grads, words, breaks = everything(net, ids)
    report = fuseline.patch(net)
    after = everything(net, ids)
    worst = max(off(a, b) for a, b in zip(after[1], grads, strict=True))
    names = ", ".join(sorted({own for _, own in (*report.replaced, *(k[:2] for k in report.kept))}))
    same = "same" if torch.equal(after[2], words) else "OTHER"
    return (
        f"{family:<12} {names:<16} {len(report.replaced):>8} {len(report.kept):>4} "
        f"{off(after[0], logits):>9.1e} {worst:>9.1e} {same:>7} {breaks:>7} {after[3]:>6}"
    )


def main() -> None:
    device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, float32, {device}")
    print(
        f"{'family':<12} {'norm':<16} {'replaced':>8} {'kept':>4} {'logits':>9} {'gradients':>9} "
        f"{'tokens':>7} {'breaks':>7} {'after':>6}"
    )
    for family in FAMILIES:
        print(line(family, device), flush=True)


if __name__ == "__main__":
    main()
