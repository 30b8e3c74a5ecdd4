"""One group as tensors: its inputs, several sets of them, new contents in place."""
