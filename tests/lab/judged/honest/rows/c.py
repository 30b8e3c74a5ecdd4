# judged: right
# device: cpu
import ctypes
import subprocess
import tempfile
from pathlib import Path

import torch
from torch import nn

CODE = """
#include <math.h>
void rows(const float* x, float* y, long n, long m, float scale) {
  for (long i = 0; i < n; ++i, x += m, y += m) {
    float top = -INFINITY, sum = 0;
    for (long j = 0; j < m; ++j) top = fmaxf(top, x[j] * scale);
    for (long j = 0; j < m; ++j) sum += y[j] = expf(x[j] * scale - top);
    for (long j = 0; j < m; ++j) y[j] /= sum;
  }
}
"""


def built():
    folder = Path(tempfile.mkdtemp())
    (folder / "rows.c").write_text(CODE)
    command = ["cc", "-O2", "-shared", "-fPIC", "rows.c", "-o", "rows.so", "-lm"]
    subprocess.run(command, cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "rows.so")).rows


class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale, self.rows = scale, built()

    def forward(self, x):
        x, (n, m) = x.contiguous(), x.shape
        y = torch.empty_like(x)
        places = ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(y.data_ptr())
        self.rows(*places, ctypes.c_long(n), ctypes.c_long(m), ctypes.c_float(self.scale))
        return y
