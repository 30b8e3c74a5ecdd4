"""Training steps, or calls, of a model of transformers with random weights; nothing is downloaded.

python of_transformers.py NAME [--size tiny|mini|small|large] [--infer] [--dtype bfloat16]
"""

import argparse
from typing import Any

import torch
import transformers
from torch import Tensor

NAMES = ("llama", "qwen3", "gpt2", "bert", "vit")
# Layers, width, of a feed-forward network, heads, words, batch, tokens.
SIZES = {
    "tiny": (2, 64, 128, 4, 512, 2, 32),
    "mini": (2, 256, 704, 4, 4096, 4, 128),
    "small": (4, 512, 1408, 8, 8192, 4, 512),
    "large": (12, 2048, 5632, 32, 32000, 4, 2048),
}
CLASSES = {
    "bert": transformers.AutoModelForMaskedLM,
    "vit": transformers.AutoModelForImageClassification,
}


def config(name: str, size: str) -> Any:
    layers, width, inner, heads, words, _, length = SIZES[size]
    if name == "gpt2":
        return transformers.AutoConfig.for_model(
            name, n_layer=layers, n_embd=width, n_head=heads, n_inner=inner, vocab_size=words,
            n_positions=length,
        )  # fmt: skip
    given = {
        "num_hidden_layers": layers, "hidden_size": width, "intermediate_size": inner,
        "num_attention_heads": heads, "max_position_embeddings": max(length, 512),
    }  # fmt: skip
    if name == "vit":
        del given["max_position_embeddings"]
        return transformers.AutoConfig.for_model(
            name, **given, image_size=64 if size == "tiny" else 224
        )
    if name != "bert":
        given |= {"num_key_value_heads": max(1, heads // 4), "head_dim": width // heads}
    return transformers.AutoConfig.for_model(name, **given, vocab_size=words)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("--size", choices=list(SIZES), default="tiny")
    parser.add_argument("--infer", action="store_true")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--steps", type=int, default=1000)
    given = parser.parse_args()
    torch.manual_seed(0)
    device, dtype = "cuda" if torch.cuda.is_available() else "cpu", getattr(torch, given.dtype)
    made = CLASSES.get(given.name, transformers.AutoModelForCausalLM)
    model = made.from_config(config(given.name, given.size)).to(device, dtype)
    _, _, _, _, words, batch, length = SIZES[given.size]

    def batch_of() -> dict[str, Tensor]:
        if given.name == "vit":
            side = model.config.image_size
            images = torch.randn(8 * batch, 3, side, side, device=device, dtype=dtype)
            return {
                "pixel_values": images,
                "labels": torch.zeros(len(images), dtype=torch.long, device=device),
            }
        tokens = torch.randint(words, (batch, length), device=device)
        return {"input_ids": tokens, "labels": tokens}

    if given.infer:
        model.eval()
        with torch.inference_mode():
            for _ in range(given.steps):
                model(**batch_of())
        return
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=device == "cuda")
    for _ in range(given.steps):
        model(**batch_of()).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
