"""conv_bn in eval on a GPU: host and device time a call beside torch's, and of the folding alone."""
import time

import torch

import fuseline
from fuseline.ops.conv_bn import op

print(torch.cuda.get_device_name(), torch.__version__)


def host(call, n=500):
    best = 1e9
    for _ in range(5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(n):
            call()
        best = min(best, (time.perf_counter() - start) / n)
        torch.cuda.synchronize()
    return best * 1e6


def device(call):
    graph = torch.cuda.CUDAGraph()
    call()
    with torch.cuda.graph(graph):
        for _ in range(20):
            call()
    graph.replay()
    best = 1e9
    for _ in range(10):
        a, b = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        a.record()
        graph.replay()
        b.record()
        b.synchronize()
        best = min(best, a.elapsed_time(b) / 20)
    return best * 1e3


for k, c, r in ((64, 64, 1), (64, 3, 7), (256, 64, 1), (512, 512, 3), (2048, 512, 1)):
    for wide, dtype in ((torch.float32, torch.bfloat16), (torch.bfloat16,) * 2):
        x = torch.randn(1, c, 7, 7, device="cuda", dtype=dtype)
        x = x.contiguous(memory_format=torch.channels_last)
        w = torch.randn(k, c, r, r, device="cuda", dtype=wide)
        w = w.contiguous(memory_format=torch.channels_last)
        v = [torch.rand(k, device="cuda") + 0.5 for _ in range(4)]
        given = (x, w, None, *v, 1e-5)
        with torch.no_grad():
            print(k, c, r, wide, "fold: host %.1f us, device %.2f; by torch: host %.1f, device %.2f"
                  % (host(lambda: op._by_kernel(*given)), device(lambda: op._by_kernel(*given)),
                     host(lambda: op._by_torch(*given)), device(lambda: op._by_torch(*given))),
                  flush=True)
            if wide == dtype:
                w_, b_, m, s = v

                def own():
                    h = torch.conv2d(x, w, None, padding=r // 2)
                    return torch.batch_norm(h, w_, b_, m, s, False, 0.1, 1e-5, True).relu_()

                def ours():
                    return fuseline.conv_bn(x, w, None, *v, relu=True, padding=r // 2)

                print("  call: host %.1f us, torch's own %.1f" % (host(ours), host(own)), flush=True)
