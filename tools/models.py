"""What Fuseline brings to whole models on a GPU: time, peak memory and loss by each way.

    python tools/models.py --out FILE [--model NAME]... [--way WAY]... [--part PART]... [--tiny]
                           [--beside N]
    python tools/models.py --table FILE...

Each model and way runs in a process of its own with empty compile caches, and adds a line of JSON
to FILE; N of them at a time, which compile beside each other and are timed one by one. Parts:
"train" (forward, backward, fused AdamW), "infer" (forward alone: a prompt, or images), "decode"
(one token after PAST of a static cache) and "losses" (LOSSES steps in fp32 of a model of two
layers, the same batches for every way). Weights are random, nothing is downloaded.
"""

from __future__ import annotations

import argparse
import fcntl
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from patch_pairs import resnet50
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import fuseline
from fuselab.processes import caches

WAYS = ("eager", "enable", "patch", "compile", "compile + ours", "liger")
PARTS = ("train", "infer", "decode", "losses")
# Not the default device: a mode for it takes each call of torch's through Python.
DEVICE = torch.device("cuda")
TURNS, ROUNDS, LOSSES, PAST = 4, 4, 200, 1024
SECONDS = 600  # of one process, others' turns included
LOCKS = "MODELS_LOCKS"  # the variable with the folder of the locks by which processes take turns
TINY = {
    "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "head_dim": 16, "max_position_embeddings": 2048,
}  # fmt: skip
GROUPED = {"num_key_value_heads": 2}


@dataclass(frozen=True)
class Model:
    """A model and its inputs.

    kind    "causal" and "masked" of language, "image", "tokens" (batch, length, width)
    config  of transformers' class for it
    """

    kind: str
    batch: int
    length: int
    config: dict[str, Any]

    @property
    def tiny(self) -> dict[str, Any]:
        return TINY | (GROUPED if "num_key_value_heads" in self.config else {})


def _config(hidden: int, inner: int, layers: int, heads: int, vocab: int, **more: Any) -> Any:
    return {
        "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers,
        "num_attention_heads": heads, "vocab_size": vocab, **more,
    }  # fmt: skip


MODELS = {
    "llama": Model("causal", 4, 2048, _config(2048, 5632, 22, 32, 32000, num_key_value_heads=4)),
    "qwen3": Model(
        "causal", 4, 2048,
        _config(1024, 3072, 14, 16, 151936, num_key_value_heads=8, head_dim=128),
    ),
    "gemma3_text": Model(
        "causal", 2, 2048,
        _config(1152, 6912, 13, 4, 262144, num_key_value_heads=1, head_dim=256),
    ),
    "mistral": Model(
        "causal", 2, 2048,
        _config(4096, 14336, 4, 32, 32000, num_key_value_heads=8, sliding_window=None),
    ),
    "gpt2": Model("causal", 8, 1024, _config(768, 3072, 12, 12, 50257)),
    "bert": Model("masked", 32, 512, _config(768, 3072, 12, 12, 30522)),
    "vit": Model("image", 64, 224, _config(768, 3072, 12, 12, 0)),
    "resnet50": Model("image", 64, 224, {}),
    "dit": Model("tokens", 32, 256, {"hidden_size": 1152, "num_hidden_layers": 12}),
    "mlp": Model("tokens", 8, 1024, {"hidden_size": 4096, "num_hidden_layers": 4}),
}  # fmt: skip


class DiTBlock(nn.Module):
    """A block of a diffusion transformer: norms without weights, scaled, shifted and gated."""

    def __init__(self, n: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = (
            nn.LayerNorm(n, eps=1e-6, elementwise_affine=False) for _ in range(2)
        )
        self.qkv, self.proj = nn.Linear(n, 3 * n), nn.Linear(n, n)
        self.mlp = nn.Sequential(nn.Linear(n, 4 * n), nn.GELU("tanh"), nn.Linear(4 * n, n))
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(n, 6 * n))

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = (
            self.modulation(c).unsqueeze(1).chunk(6, dim=-1)
        )
        h = self.norm1(x) * (1 + scale1) + shift1
        q, k, v = self.qkv(h).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + gate1 * self.proj(mixed.transpose(1, 2).flatten(2))
        h = self.norm2(x) * (1 + scale2) + shift2
        y: Tensor = x + gate2 * self.mlp(h)
        return y


class DiT(nn.Module):
    def __init__(self, n: int, layers: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(DiTBlock(n, n // 64 or 1) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        condition = x.mean(1)
        for block in self.blocks:
            x = block(x, condition)
        return x


class Feed(nn.Module):
    """Feed-forward networks with norms, each added to its input."""

    def __init__(self, n: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(n), nn.Linear(n, 4 * n), nn.GELU(), nn.Linear(4 * n, n))
            for _ in range(layers)
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x


def build(name: str, tiny: bool) -> nn.Module:
    model = MODELS[name]
    config = dict(model.config)
    if name == "resnet50":
        return resnet50()
    if name in ("dit", "mlp"):
        n, layers = (64, 2) if tiny else (config["hidden_size"], config["num_hidden_layers"])
        return (DiT if name == "dit" else Feed)(n, layers)
    if tiny:
        config |= model.tiny
    classes = {
        "causal": transformers.AutoModelForCausalLM,
        "masked": transformers.AutoModelForMaskedLM,
        "image": transformers.AutoModelForImageClassification,
    }
    if name == "gpt2":  # its config has other names
        names = {"hidden_size": "n_embd", "num_hidden_layers": "n_layer",
                 "num_attention_heads": "n_head", "intermediate_size": "n_inner"}  # fmt: skip
        config = {names.get(k, k): v for k, v in config.items() if k != "head_dim"}
    config = {k: v for k, v in config.items() if v or k != "vocab_size"}
    made = transformers.AutoConfig.for_model(name, **config)
    net: nn.Module = classes[model.kind].from_config(made)
    return net


def inputs_of(name: str, net: nn.Module, tiny: bool, dtype: torch.dtype) -> Tensor:
    model = MODELS[name]
    batch, length = (2, 32) if tiny else (model.batch, model.length)
    if model.kind == "image":
        x = torch.randn(batch, 3, 224, 224, dtype=dtype, device=DEVICE)
        return x.to(memory_format=torch.channels_last) if name == "resnet50" else x
    if model.kind == "tokens":
        n = 64 if tiny else model.config["hidden_size"]
        return torch.randn(batch, length, n, dtype=dtype, device=DEVICE)
    vocab: Any = net.config
    return torch.randint(1, vocab.vocab_size, (batch, length), device=DEVICE)


def loss_of(kind: str, net: Callable[..., Any], x: Tensor) -> Tensor:
    if kind in ("causal", "masked"):
        loss: Tensor = net(input_ids=x, labels=x).loss
        return loss
    y = net(x)
    return (y.logits if hasattr(y, "logits") else y).float().square().mean()


def serve(net: nn.Module, way: str) -> tuple[Callable[..., Any], str]:
    """Return what is called in this way, and what it says of itself."""
    said = ""
    if way == "enable":
        fuseline.enable()
    if way in ("patch", "compile + ours"):
        report = fuseline.patch(net)
        said = f"{len(report.replaced)} replaced, {len(report.kept)} kept"
    if way == "liger":
        liger: Any = importlib.import_module("liger_kernel.transformers.monkey_patch")
        config: Any = getattr(net, "config", None)
        if getattr(config, "model_type", None) not in liger.MODEL_TYPE_TO_APPLY_LIGER_FN:
            raise LookupError("liger has no patch of this model")
        liger._apply_liger_kernel_to_instance(net)
    if way == "compile":
        return torch.compile(net, dynamic=False), said
    if way == "compile + ours":
        return torch.compile(net, dynamic=False, options=fuseline.compile_options()), said
    return net, said


@contextmanager
def turn(kind: int) -> Iterator[None]:
    """Hold the GPU alone (LOCK_EX), or with others (LOCK_SH), behind who waits to have it alone."""
    with ExitStack() as locks:
        if folder := os.environ.get(LOCKS):
            door, gpu = (locks.enter_context((Path(folder) / n).open("w")) for n in ("door", "gpu"))
            fcntl.flock(door, fcntl.LOCK_EX)
            fcntl.flock(gpu, kind)
            fcntl.flock(door, fcntl.LOCK_UN)
        yield


def taken(call: Callable[[], object]) -> float:
    """Return ms of a call, host and device."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - start)


def of_kernels(call: Callable[[], object]) -> float:
    """Return ms of the kernels of a call: where the host takes longer, what it hides."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        call()
        torch.cuda.synchronize()
    found = [e for e in profiler.key_averages() if e.device_type == torch.autograd.DeviceType.CUDA]
    return sum(e.self_device_time_total for e in found) / 1e3


def timed(call: Callable[[], object]) -> dict[str, float]:
    """Return ms of a call: median and least of all turns, the first (which compiles) apart, and of
    its kernels.
    """
    with turn(fcntl.LOCK_SH):
        first = taken(call)
    rest = []
    for _ in range(TURNS):
        with turn(fcntl.LOCK_EX):
            call()
            rest += [taken(call) for _ in range(ROUNDS)]
    with turn(fcntl.LOCK_EX):
        kernels = of_kernels(call)
    median = statistics.median(rest)
    return {"ms": median, "least": min(rest), "kernels": kernels, "first_s": first / 1e3}


def step_of(kind: str, net: nn.Module, run: Any, x: Tensor, rate: float) -> Callable[[], Tensor]:
    adam = torch.optim.AdamW(net.parameters(), rate, fused=True)

    def step() -> Tensor:
        loss = loss_of(kind, run, x)
        loss.backward()
        adam.step()
        adam.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def train(name: str, net: nn.Module, run: Any, tiny: bool) -> dict[str, Any]:
    x = inputs_of(name, net, tiny, torch.bfloat16)
    step = step_of(MODELS[name].kind, net.train(), run, x, 1e-5)
    torch.cuda.reset_peak_memory_stats()
    found: dict[str, Any] = timed(step)
    peak = torch.cuda.max_memory_allocated()
    return found | {"peak_GiB": peak / 2**30, "loss": float(step())}


def infer(name: str, net: nn.Module, run: Any, tiny: bool) -> dict[str, Any]:
    net.eval()
    x = inputs_of(name, net, tiny, torch.bfloat16)
    more = {"logits_to_keep": 1} if MODELS[name].kind == "causal" else {}
    with torch.no_grad():
        return dict(timed(lambda: run(x, **more)))


def decode(name: str, net: Any, run: Any, tiny: bool) -> dict[str, Any]:
    net.eval()
    x = inputs_of(name, net, tiny, torch.bfloat16)
    batch, past = x.shape[0], 16 if tiny else PAST - 64
    cache = transformers.StaticCache(config=net.config, max_cache_len=past + 64)
    prompt = x[:, :1].expand(batch, past).contiguous()
    with torch.no_grad():
        net(prompt, past_key_values=cache, use_cache=True, logits_to_keep=1)
        return dict(timed(lambda: run(x[:, :1], past_key_values=cache, use_cache=True)))


def losses(name: str, net: nn.Module, run: Any, tiny: bool) -> dict[str, Any]:
    kind = MODELS[name].kind
    batches = [inputs_of(name, net, True, torch.float32) for _ in range(8)]
    net.train()
    adam = torch.optim.AdamW(net.parameters(), 1e-4, fused=True)
    curve = []
    for i in range(LOSSES):
        loss = loss_of(kind, run, batches[i % len(batches)])
        loss.backward()
        adam.step()
        adam.zero_grad(set_to_none=True)
        curve.append(loss.detach())
    return {"curve": torch.stack(curve).tolist()}


def made(name: str, part: str, tiny: bool) -> nn.Module:
    with DEVICE:
        net = build(name, tiny).to(torch.float32 if part == "losses" else torch.bfloat16)
    if name == "resnet50":
        net = net.to(memory_format=torch.channels_last)
    if part == "losses":  # dropout draws by its kernel
        for module in net.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
    return net


def child(name: str, way: str, parts: list[str], tiny: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"model": name, "way": way, "gpu": torch.cuda.get_device_name()}
    for part in parts:
        if part == "decode" and MODELS[name].kind != "causal":
            continue
        small = tiny or part == "losses"
        torch.manual_seed(0)
        torch._dynamo.reset()
        try:
            with turn(fcntl.LOCK_SH):
                net = made(name, part, small)
                run, found["said"] = serve(net, way)
            found[part] = globals()[part](name, net, run, small)
        except Exception as error:
            found[part] = {"missing": f"{type(error).__name__}: {error}"[:300]}
        net = run = None
        torch.cuda.empty_cache()
    return found


def ask(name: str, way: str, parts: list[str], tiny: bool) -> dict[str, Any]:
    """Return what a process of its own answers."""
    question = json.dumps([name, way, parts, tiny])
    with caches.fresh() as env:
        command = [sys.executable, "-W", "ignore", __file__, "--child", question]
        try:
            done = subprocess.run(
                command, env=os.environ | env, capture_output=True, text=True, timeout=SECONDS
            )
        except subprocess.TimeoutExpired:
            return {"model": name, "way": way, "failed": f"took more than {SECONDS} s"}
    if done.returncode:
        return {"model": name, "way": way, "failed": done.stderr[-600:]}
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def cell(row: dict[str, Any], part: str, base: dict[str, Any]) -> str:
    """Return a part's time beside eager's, and what else it gave."""
    found, wanted = row.get(part), base.get(part, {})
    if not found:
        return row.get("failed", "").strip().splitlines()[-1:][0][:60] if "failed" in row else ""
    if "missing" in found:
        return str(found["missing"])[:60]
    if part == "losses":
        pairs = zip(found["curve"], wanted.get("curve", ()), strict=False)
        return f"{max((abs(a - b) for a, b in pairs), default=0):.1e}"
    ratio = f" ({wanted['ms'] / found['ms']:.2f}x)" if "ms" in wanted else ""
    memory = f", {found['peak_GiB']:.1f} GiB" if "peak_GiB" in found else ""
    least = f"[{found['least']:.2f}, kernels {found['kernels']:.2f}]"
    return f"{found['ms']:.2f} {least}{ratio}{memory}, first {found['first_s']:.0f} s"


def table(files: list[Path]) -> str:
    """Return the answers of files as a table, speedups over eager of the same model."""
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    by: dict[str, dict[str, Any]] = defaultdict(dict)
    for row in rows:
        by[row["model"]][row["way"]] = row
    heads = {"train": "training step, ms", "infer": "prompt or images, ms",
             "decode": "a token, ms", "losses": "loss apart"}  # fmt: skip
    lines = [f"| model | way | {' | '.join(heads.values())} |", "|---|---" * 3 + "|"]
    for name in (n for n in MODELS if n in by):
        for way in (w for w in WAYS if w in by[name]):
            row, base = by[name][way], by[name].get("eager", {})
            cells = " | ".join(cell(row, part, base) for part in PARTS)
            lines.append(f"| {name} | {way} | {cells} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path, nargs="+")
    parser.add_argument("--child", type=json.loads)
    parser.add_argument("--model", action="append", choices=MODELS)
    parser.add_argument("--way", action="append", choices=WAYS)
    parser.add_argument("--part", action="append", choices=PARTS)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--beside", type=int, default=1, metavar="N")
    given = parser.parse_args()
    if given.child:
        print(json.dumps(child(*given.child)))
        return
    if given.table:
        print(table(given.table))
        return
    parts = given.part or list(PARTS)
    with (
        tempfile.TemporaryDirectory() as locks,
        given.out.open("a") as file,
        ThreadPoolExecutor(given.beside) as pool,
    ):
        os.environ[LOCKS] = locks
        asked = {
            pool.submit(ask, name, way, parts, given.tiny): (name, way)
            for name in given.model or MODELS
            for way in given.way or WAYS
        }
        for done in as_completed(asked):
            answer = done.result()
            print(json.dumps(answer), file=file, flush=True)
            print(time.strftime("%T"), *asked[done], {
                p: answer[p].get("ms", answer[p].get("missing")) for p in parts if p in answer
            } or answer.get("failed", "")[-200:], flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
