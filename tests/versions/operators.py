"""Private names that the operators need (src/fuseline)."""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch.autograd.forward_ad as fwd_ad
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from versions.use import Use, arguments, exists, has

from fuseline.takeover import TAKEOVERS


class Seen(TorchDispatchMode):
    """Notes what operators it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.name())
        return func(*args, **kwargs or {})


def _transforms(active: Any) -> bool:
    seen = []
    torch.func.vmap(lambda x: seen.append(active()) or x * 2)(torch.ones(2))
    return seen == [True] and active() is False


def _modes(count: Any) -> bool:
    with Seen():
        inside = count()
    return (count(), inside) == (0, 1)


def _function_modes(count: Any) -> bool:
    with torch.overrides.TorchFunctionMode():
        inside = count()
    return inside == count() + 1


def _tracing(state: Any) -> bool:
    seen = []
    torch.jit.trace(lambda x: seen.append(state()) or x * 2, torch.ones(2), check_trace=False)
    return state() is None and seen[0] is not None


def _level(_: Any) -> bool:
    before = fwd_ad._current_level
    with fwd_ad.dual_level():
        return before < 0 <= fwd_ad._current_level


def _autocasts(enabled: Any) -> bool:
    with torch.autocast("cpu"):
        inside = enabled()
    return inside and not enabled()


def _tangent(unpack: Any) -> bool:
    x = torch.ones(2)
    with fwd_ad.dual_level():
        dual = fwd_ad.make_dual(x, x)
        return unpack(x, level=0).tangent is None and unpack(dual, level=0).tangent is not None


def _below_autograd(guard: Any) -> bool:
    x = torch.ones(2, requires_grad=True)
    with guard():
        return torch.ops.aten.mul.Tensor(x, 2.0).grad_fn is None


def _after_autograd(keys: Any) -> bool:
    below = torch._C._dispatch_keys(torch.ones(2)) & keys
    return below.has(torch._C.DispatchKey.CPU) and not below.has(torch._C.DispatchKey.AutogradCPU)


def _without_modes(guard: Any) -> bool:
    with Seen() as seen, guard():
        torch.ones(2)
    return seen.names == []


def _key_set(kind: Any) -> bool:
    cpu, python = torch._C.DispatchKey.CPU, torch._C.DispatchKey.Python
    both = kind(cpu) | kind(python)
    assert both.highestPriorityTypeId() == python
    return both.remove(python).highestPriorityTypeId() == cpu and not (both - kind(cpu)).has(cpu)


def _dump(dump: Any) -> bool:
    library = torch.library.Library("aten", "IMPL", "CPU")
    library.impl("_softmax", lambda keys, *args: None, "CPU", with_keyset=True)
    lines = [line for line in dump("aten::_softmax").splitlines() if line.startswith("CPU")]
    library._destroy()
    over, below = lines[0], lines[-1]
    assert over.startswith("CPU: registered at "), over
    assert __file__ in over, over
    return below.startswith("CPU (inactive): registered at ") and "/ATen/" in below


def _memory_format(choose: Any) -> bool:
    x, weight = torch.ones(1, 4, 8, 8), torch.ones(4, 4, 3, 3)
    last = torch.channels_last
    formats = [
        choose(t, weight, torch._C._ConvBackend.Mkldnn) for t in (x, x.to(memory_format=last))
    ]
    return formats == [torch.contiguous_format, last]


def _alias(same: Any) -> bool:
    x = torch.ones(4)
    return same(x, x[1:]) and not same(x, x.clone())


def _hooks(top: Any) -> bool:
    nothing = top(False)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        return nothing is None and top(False) is not None


def _real_tensors(unset: Any) -> bool:
    with torch._subclasses.FakeTensorMode(), unset():
        return type(torch.ones(2)) is Tensor


def _noted_by_fsdp(name: str) -> Any:
    """Return a probe: fully_shard leaves such an attribute on every module that it manages."""

    def probe(_: Any) -> bool:
        from torch.distributed.fsdp import fully_shard

        source = inspect.getsource(inspect.getmodule(inspect.unwrap(fully_shard)))  # type: ignore[arg-type]
        return f".{name} = " in source

    return probe


def _hooks_enabled(enabled: Any) -> bool:
    before = enabled()
    with torch.autograd.graph.disable_saved_tensors_hooks("not now"):
        return before and not enabled()


def _hooked(place: str, kind: str) -> Any:
    """Return a probe: a module keeps such hooks in its __dict__ under that name."""

    def probe(_: Any) -> bool:
        module = torch.nn.Linear(2, 2)
        getattr(module, f"register_{kind}")(lambda *args: None)
        return len(vars(module)[place]) == 1

    return probe


def _children(_: Any) -> bool:
    module = torch.nn.Sequential(torch.nn.ReLU())
    return list(vars(module)["_modules"]) == list(module._modules) == ["0"]


def _unboxed(op: Any) -> bool:
    run = torch.ops.aten.mul.Tensor._op
    return torch.equal(run(torch.ones(2), torch.ones(2)), torch.ones(2))


def _schema_of(_: Any) -> bool:
    found = torch.ops.aten._softmax.default._schema
    kinds = [str(a.type) for a in found.arguments]
    return found.name == "aten::_softmax" and kinds == ["Tensor", "int", "bool"]


def _context(get: Any) -> bool:
    seen = []

    def backend(graph: Any, inputs: Any) -> Any:
        seen.append(get())
        return graph

    torch.compile(lambda x: x * 2, backend=backend, fullgraph=True)(torch.ones(3))
    return get() is None and seen[0] is not None


def _fake(kind: Any) -> bool:
    with torch._subclasses.FakeTensorMode() as mode:
        x = torch.ones(2)
    return isinstance(x, kind) and torch._guards.detect_fake_mode([x]) is mode


def _functional(kind: Any) -> bool:
    with torch._subclasses.functional_tensor.FunctionalTensorMode():
        found = kind.to_functional(torch.ones(2))
    return isinstance(found, kind) and issubclass(kind, Tensor)


def _pointwise(op: Any) -> bool:
    x = torch.randn(4, 8)
    weight, bias = torch.randn(6, 8), torch.randn(6)
    y = op(x, weight, bias, "gelu", [], "none")
    torch.testing.assert_close(y, torch.nn.functional.gelu(x @ weight.t() + bias))
    return True


def _convolution(op: Any) -> bool:
    x = torch.randn(1, 3, 6, 6).to(memory_format=torch.channels_last)
    weight = torch.randn(4, 3, 3, 3).to(memory_format=torch.channels_last)
    wanted = torch.nn.functional.conv2d(x, weight, padding=1)
    z = torch.randn_like(wanted)
    rest: Any = (weight, None, [1, 1], [1, 1], [1, 1], 1)
    found = op.binary(x, z, *rest, "add", 1.0, None, [], "")
    torch.testing.assert_close(found, wanted + z)
    return True


def _attention(op: Any) -> bool:
    q = torch.randn(1, 2, 16, 8)
    out, lse = op.default(q, q, q, 0.0, True, attn_mask=None, scale=0.5)
    scores = (q @ q.mT * 0.5).masked_fill(torch.ones(16, 16).triu(1).bool(), float("-inf"))
    torch.testing.assert_close(out, scores.softmax(-1) @ q)
    torch.testing.assert_close(lse.reshape(1, 2, 16), scores.logsumexp(-1))
    return True


def _attention_backward(op: Any) -> bool:
    q = torch.randn(1, 2, 16, 8, requires_grad=True)
    forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    with torch.no_grad():
        out, lse = forward(q, q, q, 0.0, False, attn_mask=None, scale=0.5)
    dout = torch.randn_like(out)
    ((q @ q.mT * 0.5).softmax(-1) @ q).backward(dout)
    grads = op.default(dout, q, q, q, out, lse, 0.0, False, attn_mask=None, scale=0.5)
    torch.testing.assert_close(sum(grads), q.grad, atol=1e-4, rtol=1e-4)
    return True


def _sharding(kind: Any) -> bool:
    from torch.distributed.tensor import DTensor

    rules = DTensor._op_dispatcher.sharding_propagator.op_to_schema_info
    return isinstance(rules, dict) and kind(1, needs_pytree=True).needs_pytree


def _taken_over(op: Any) -> bool:
    found = op.default._schema
    wanted = {**TAKEOVERS["rms_norm"], **TAKEOVERS["softmax"], **TAKEOVERS["log_softmax"]}
    return str(found) == wanted[found.name.removeprefix("aten::")]


def _without_memory(make: Any) -> bool:
    class Made(Tensor):
        @classmethod
        def __torch_dispatch__(cls, *_: Any) -> Any:
            raise AssertionError("asked for what it is made of")

    found = make(Made, (2, 3), dtype=torch.float16, device="cpu")
    return type(found) is Made and (found.shape, found.dtype) == ((2, 3), torch.float16)


def _unasked(disabled: Any) -> bool:
    class Asked(Tensor):
        @classmethod
        def __torch_function__(cls, *_: Any, **__: Any) -> Any:
            raise AssertionError("asked")

    with disabled():
        return bool(torch.ones(2).as_subclass(Asked).sum() == 2)


_SAVED = ("grad_out", "query", "key", "value", "out", "logsumexp")
_LENGTHS = ("cum_seq_q", "cum_seq_k", "max_q", "max_k")

USES = (
    Use(
        "what looks on at an eager call: functorch, modes, tracing, forward mode, autocast",
        "`guarded` in core/registration/variant.py and operator.py beside it must ask otherwise. "
        "Until they do, have `guarded` call `public` always: slower, and right. core/host asks the "
        "same in C++",
        {
            "torch._C._are_functorch_transforms_active": _transforms,
            "torch._C._len_torch_dispatch_stack": _modes,
            "torch._C._get_tracing_state": _tracing,
            "torch.autograd.forward_ad._current_level": _level,
            "torch._C._is_any_autocast_enabled": _autocasts,
            "torch._VF._unpack_dual": _tangent,
            "torch._subclasses.fake_tensor.FakeTensor": _fake,
            "torch._subclasses.functional_tensor.FunctionalTensor": _functional,
            "torch._is_functional_tensor": lambda f: not f(torch.ones(2)),
        },
    ),
    Use(
        "an operator below autograd, by its keys",
        "core/registration: variant.py `autograd_rule`, contract.py `_checked`, `kernel_below`: "
        "find what torch.library itself does below autograd in that torch, and do the same",
        {
            "torch._C._AutoDispatchBelowAutograd": _below_autograd,
            "torch._C._after_autograd_keyset": _after_autograd,
            "torch._C.DispatchKey": has("CPU", "CUDA", "AutogradCPU", "Undefined"),
            "torch._C.DispatchKeySet": _key_set,
            "torch._ops.OpOverload._op": _unboxed,
            "torch._ops.OpOverload._schema": _schema_of,
            "torch._C._DisableTorchDispatch": _without_modes,
            "torch._functorch.utils.enable_single_level_autograd_function": lambda f: f().__enter__,
        },
    ),
    Use(
        "what torch has kernels for, and who registered them",
        "core/native.py `has_kernel`, core/registration/overrides.py (status() and enable() rest "
        "on it), nn/__init__.py: read what took the tables' place; torch.library.get_kernel is "
        "public",
        {
            "torch._C._dispatch_get_all_op_names": lambda f: "aten::_softmax" in f(),
            "torch._C._dispatch_has_kernel_for_dispatch_key": lambda f: (
                f("aten::_softmax", "CPU") and not f("aten::rms_norm", "CPU")
            ),
            "torch._C._dispatch_dump": _dump,
            "torch.library.Library._destroy": exists,
        },
    ),
    Use(
        'ATen\'s operators that enable() takes over, and that impl="aten" calls',
        "compare the schemas of ATEN in ops/<op>/op.py with torch's: take over the new one, in "
        "core/cpp too. Until then enable() refuses, and says which schema it found",
        {
            "torch.ops.aten._softmax": _taken_over,
            "torch.ops.aten._softmax_backward_data": _taken_over,
            "torch.ops.aten._log_softmax": _taken_over,
            "torch.ops.aten._log_softmax_backward_data": _taken_over,
            "torch.ops.aten._fused_rms_norm": _taken_over,
            "torch.ops.aten._fused_rms_norm_backward": _taken_over,
        },
    ),
    Use(
        'ATen\'s attention, as impl="flash" and "cudnn" call it and sdpa.py stands in for it',
        "compare ops/attention/impl_flash.py, impl_cudnn.py, attention_varlen/impl_flash.py and "
        "sdpa.py with the operator's new arguments and results",
        {
            "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu": _attention,
            "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward": (
                _attention_backward
            ),
            "torch.ops.aten._scaled_dot_product_flash_attention": arguments(
                *("query", "key", "value", "dropout_p", "is_causal", "return_debug_mask", "scale")
            ),
            "torch.ops.aten._scaled_dot_product_flash_attention_backward": arguments(
                *_SAVED, *_LENGTHS, "dropout_p", "is_causal", "philox_seed", "philox_offset"
            ),
            "torch.ops.aten._flash_attention_forward": arguments(
                *("query", "key", "value", *_LENGTHS, "dropout_p", "is_causal"),
                *("return_debug_mask", "scale", "window_size_left", "window_size_right"),
            ),
            "torch.ops.aten._flash_attention_backward": arguments(
                *_SAVED, *_LENGTHS, "dropout_p", "is_causal", "rng_state", "unused", "scale"
            ),
            "torch.ops.aten._scaled_dot_product_cudnn_attention": arguments(
                *("query", "key", "value", "attn_bias", "compute_log_sumexp", "dropout_p"),
                *("is_causal", "return_debug_mask", "scale"),
            ),
            "torch.ops.aten._scaled_dot_product_cudnn_attention_backward": arguments(
                *_SAVED, "philox_seed", "philox_offset", "attn_bias", *_LENGTHS, "dropout_p"
            ),
        },
    ),
    Use(
        "oneDNN's fused kernels, and the memory format of a convolution",
        "core/onednn.py, core/products/onednn.py, core/convolutions/providers.py: `auto` goes on "
        "without them. "
        "core/convolutions/geometry.py: leave the rule in C++ out, that in Python below it holds",
        {
            "torch.ops.mkldnn._is_mkldnn_bf16_supported": lambda f: type(f()) is bool,
            "torch.ops.mkldnn._linear_pointwise": _pointwise,
            "torch.ops.mkldnn._convolution_pointwise": _convolution,
            "torch._C._conv_determine_backend_memory_format": _memory_format,
            "torch._C._ConvBackend": has("Mkldnn"),
            "torch._prims_common.suggest_memory_format": lambda f: (
                f(torch.ones(1, 2, 3, 4)) is torch.contiguous_format
            ),
        },
    ),
    Use(
        "settings and tensors that the arguments' own methods do not tell",
        "core/products/cublaslt.py `tf32`, ops/attention_varlen/impl_args.py, testing/settings.py: "
        "read the same from the public switch or from the tensor's storage",
        {
            "torch._C._get_fp32_precision_getter": lambda f: isinstance(f("cuda", "matmul"), str),
            "torch._C._is_alias_of": _alias,
            "torch.Tensor._is_zerotensor": lambda _: not torch.ones(2)._is_zerotensor(),
            "torch._C._len_torch_function_stack": _function_modes,
            "torch.utils._python_dispatch._get_current_dispatch_mode_stack": lambda f: f() == [],
            "torch.utils._python_dispatch.TorchDispatchMode": lambda _: _modes(
                torch._C._len_torch_dispatch_stack
            ),
            "torch._subclasses.FakeTensorMode": exists,
            "torch._subclasses.fake_tensor.FakeTensorMode": exists,
            "torch.cuda._sleep": exists,
        },
    ),
    Use(
        "compiled graphs: what runs in one, its hash, what a graph traces through",
        "core/registration: contract.py `_trace_through`, variant.py `_functionalizing`, "
        "fingerprint.py; core/selection/select.py. A graph that keeps an old kernel or a host's "
        "choice is wrong on other machines: tests/ops/test_compile_caches.py must pass",
        {
            "torch._C._get_dispatch_mode": lambda f: (
                f(torch._C._TorchDispatchModeKey.FUNCTIONAL) is None
            ),
            "torch._C._TorchDispatchModeKey": has("FUNCTIONAL"),
            "torch._subclasses.functional_tensor.FunctionalTensorMode": has("__torch_dispatch__"),
            "torch.export._trace.custom_triton_ops_decomposition_disabled": lambda f: f() is False,
            "torch.compiler._is_exporting_flag": lambda flag: flag is False,
            "torch._guards.TracingContext": lambda kind: _context(kind.try_get),
        },
    ),
    Use(
        "compile_options: passes over Inductor's graphs, and the formula traced for one of them",
        "inlining/: find a pass's new name and form in torch/_inductor/config.py. Without it "
        "compile_options() must raise; the operators stay in the graph, and right",
        {
            "torch._inductor.custom_graph_pass.CustomGraphPass": has("uuid", "__call__"),
            "torch._inductor.config.joint_custom_pre_pass": lambda given: given is None,
            "torch._inductor.config.pre_grad_custom_pass": lambda given: given is None,
            "torch._inductor.decomposition.select_decomp_table": lambda f: len(f()) > 100,
            "torch._dispatch.python.enable_python_dispatcher": lambda f: f().__enter__,
            "torch._guards.detect_fake_mode": lambda f: f([torch.ones(2)]) is None,
            "torch._subclasses.fake_tensor.unset_fake_temporarily": _real_tensors,
            "torch.ops.aten._scaled_dot_product_efficient_attention": arguments(
                *("query", "key", "value", "attn_bias", "compute_log_sumexp", "dropout_p"),
                "is_causal",
            ),
            "torch.ops.aten._scaled_dot_product_efficient_attention_backward": arguments(
                *("grad_out_", "query", "key", "value", "attn_bias", "out", "logsumexp"),
                *("philox_seed", "philox_offset", "dropout_p", "grad_input_mask", "is_causal"),
            ),
            "torch.ops.aten._unsafe_view": arguments("self", "size"),
            "torch.ops.aten._to_copy": arguments("self", "dtype", "layout", "device"),
        },
        beyond={
            "torch._inductor.config.joint_custom_pre_pass": "joint_custom_pre_pass",
            "torch._inductor.config.pre_grad_custom_pass": "pre_grad_custom_pass",
        },
    ),
    Use(
        "patch(): the hooks and children that a module keeps, and what compilers keep of it",
        "patching/pairs, patching/serving.py: what cannot be seen must not be patched; refuse the "
        "module until it can",
        {
            "torch.nn.Module._modules": _children,
            "torch.nn.Module._parameters": lambda _: (
                [*vars(torch.nn.Linear(1, 1))["_parameters"]] == ["weight", "bias"]
            ),
            "torch.nn.Module._buffers": lambda _: (
                "running_mean" in vars(torch.nn.BatchNorm1d(1))["_buffers"]
            ),
            "torch.nn.Module._forward_hooks": _hooked("_forward_hooks", "forward_hook"),
            "torch.nn.Module._forward_pre_hooks": _hooked("_forward_pre_hooks", "forward_pre_hook"),
            "torch.nn.Module._backward_hooks": _hooked("_backward_hooks", "full_backward_hook"),
            "torch.nn.Module._backward_pre_hooks": _hooked(
                "_backward_pre_hooks", "full_backward_pre_hook"
            ),
            "torch.nn.modules.module._has_any_global_hook": lambda f: not f(),
            "torch._C._autograd._top_saved_tensors_default_hooks": _hooks,
            "torch._C._autograd._saved_tensors_hooks_is_enabled": _hooks_enabled,
            "torch.nn.Module._is_fsdp_managed_module": _noted_by_fsdp("_is_fsdp_managed_module"),
            "torch.nn.Module._fsdp_use_orig_params": _noted_by_fsdp("_fsdp_use_orig_params"),
        },
    ),
    Use(
        "patch(): logits without memory, a tensor subclass that its dispatcher's calls compute",
        "patching/logits.py: make the subclass as torch's own wrappers are made there; until then "
        "have `output_layer` give None, so that logits are computed at once",
        {
            "torch.Tensor._make_wrapper_subclass": _without_memory,
            "torch._C.DisableTorchFunctionSubclass": _unasked,
        },
    ),
    Use(
        "DTensors: what torch keeps a sharding rule's answer by",
        "sharding/registration.py `_know_all_arguments`: without it torch forgets floats and bools "
        "and two calls share one answer. tests/ops/test_sharding.py must pass",
        {
            "torch.distributed.tensor.DTensor._op_dispatcher": has("sharding_propagator"),
            "torch.distributed.tensor._op_schema.RuntimeSchemaInfo": _sharding,
        },
    ),
)
