"""An inference script: a model called in a loop, its neighbour imported, no optimizer."""

import sys
from pathlib import Path

import torch
from train import Model

assert __name__ == "__main__"
assert Path(sys.argv[0]).name == "infer.py"
calls = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
width = int(sys.argv[2]) if len(sys.argv) > 2 else 64
torch.manual_seed(0)
model = Model(width, 2, 512).eval()
with torch.inference_mode():
    for _ in range(calls):
        model(torch.randint(512, (4, 64)))
print("done")
