"""fuselab train-bench: one small Llama-style model, trained alike in PyTorch and in JAX."""
