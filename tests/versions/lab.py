"""Private names that the lab needs (src/fuselab), and those of Triton."""

from __future__ import annotations

import inspect
import logging
from typing import Any

import torch
from versions.use import Use, exists, has, mentions, takes


def _keys(keys: Any) -> bool:
    cpu = torch._C.DispatchKey.CPU
    found = keys(torch.ones(2)) | torch._C._dispatch_tls_local_include_set()
    rest = found - torch._C._dispatch_tls_local_exclude_set()
    names = []
    while (highest := rest.highestPriorityTypeId()) != torch._C.DispatchKey.Undefined:
        names.append(highest)
        rest = rest.remove(highest)
    return cpu in names and str(cpu) == "DispatchKey.CPU"


def _table(dump: Any) -> bool:
    lines = dump("aten::mul.Tensor").splitlines()
    line = next(line for line in lines if line.startswith("CPU: "))
    return "registered at " in line and line.endswith(" [kernel]")


def _schemas(get: Any) -> bool:
    names = {found.overload_name for found in get("aten::mul")}
    return {"Tensor", "Scalar"} <= names


def _python_kernels(known: Any) -> bool:
    library = torch.library.Library("aten", "IMPL", "CPU")
    library.impl("_softmax", lambda *args: None, "CPU")
    seen = "aten/_softmax/CPU" in known
    library._destroy()
    return seen


def _bodies(_: Any) -> bool:
    from torch._library.custom_ops import OPDEFS

    @torch.library.custom_op("fuseline_canary::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    return callable(OPDEFS["fuseline_canary::twice"]._backend_fns[None])


def _by_key(_: Any) -> bool:
    x, key = torch.ones(2), torch._C.DispatchKey.CPU
    return torch.equal(torch.ops.aten.mul.Tensor._op_dk(key, x, x), x)


def _compiled(_: Any) -> bool:
    function = torch.compile(lambda x: x)
    module = torch.compile(torch.nn.ReLU())
    return bool(function._torchdynamo_orig_callable and type(module._orig_mod) is torch.nn.ReLU)


def _counters(counters: Any) -> bool:
    torch._dynamo.reset()
    before = counters["stats"]["unique_graphs"]
    torch.compile(lambda x: x * 3, backend="eager")(torch.ones(2))
    return counters["stats"]["unique_graphs"] == before + 1


def _versions(_: Any) -> bool:
    x = torch.ones(2)
    before = x._version
    return x.add_(1)._version == before + 1


def _storages(_: Any) -> bool:
    x = torch.ones(4)
    first, second = (t.untyped_storage()._cdata for t in (x, x[1:]))
    return first == second != x.clone().untyped_storage()._cdata


def _steps_of_optimizers(hook: Any) -> bool:
    """Say whether the step of a new class goes through the hook, looked up on the class."""
    seen = []

    class Plain(torch.optim.SGD):
        pass

    def noting(step: Any) -> Any:
        seen.append(step)
        return hook(step)

    torch.optim.Optimizer.profile_hook_step = staticmethod(noting)
    try:
        Plain([torch.ones(1)])
    finally:
        torch.optim.Optimizer.profile_hook_step = staticmethod(hook)
    return len(seen) == 1


def _settings(*names: str) -> Any:
    """Return a probe: a module of settings, which are copied and patched, has these."""

    def probe(found: Any) -> bool:
        with found.patch(dict.fromkeys(names, True)):
            return bool(found.get_config_copy()) and all(getattr(found, name) for name in names)

    return probe


_SCHEDULED = (
    *("get_outer_nodes", "get_read_write_buffer_accesses", "get_outputs", "get_nodes", "group"),
)

USES = (
    Use(
        "fuselab trace: the dispatcher's tables, walked as a call goes through them",
        "trace/walk.py: `unavailable` names what is gone and the trace goes on without the walk; "
        "where a line of the table reads otherwise, mend `_ENTRY`",
        {
            "torch._C._dispatch_keys": _keys,
            "torch._C._dispatch_tls_local_include_set": exists,
            "torch._C._dispatch_tls_local_exclude_set": exists,
            "torch._C._dispatch_dump_table": _table,
            "torch._C._jit_get_schemas_for_operator": _schemas,
            "torch.utils._pytree.tree_leaves": lambda f: f([1, (2, {"a": 3})]) == [1, 2, 3],
            "torch.utils._pytree.tree_map": lambda f: f(str, [1, (2,)]) == ["1", ("2",)],
        },
    ),
    Use(
        "assert_fused: what eager code dispatches, and what is inside an operator",
        "fusion/ledger.py: a kernel that cannot be looked into is counted as one; tests/lab/"
        "test_fusion_contracts.py must give docs/fusion.md's counts again",
        {
            "torch.library._impls": _python_kernels,
            "torch._library.custom_ops.OPDEFS": exists,
            "torch._library.custom_ops.CustomOpDef._backend_fns": _bodies,
            "torch._C._dispatch_key_for_device": lambda f: f("cpu") == "CPU",
            "torch._ops.OpOverload": has("tags", "name"),
            "torch._ops.OpOverload._op_dk": _by_key,
            "torch._dynamo.eval_frame.OptimizedModule._orig_mod": _compiled,
            "torch._dynamo.eval_frame._TorchDynamoContext._torchdynamo_orig_callable": _compiled,
        },
    ),
    Use(
        "assert_fused and explain: what Inductor's scheduler fused, and why not",
        "fusion/compiler.py `_hooks`, fusion/scheduler.py: find where the scheduler now decides; a "
        "canary of test_fusion.py says which count is off. Until it is mended, `Watch` must raise",
        {
            "torch._inductor.scheduler.Scheduler": lambda c: takes("node1", "node2")(c.can_fuse),
            "torch._inductor.scheduler.WhyNoFuse": lambda c: (
                takes("reason", "args")(c.__call__) and mentions("name1", "name2")(c)
            ),
            "torch._inductor.scheduler.ExternKernelSchedulerNode": exists,
            "torch._inductor.scheduler.NopKernelSchedulerNode": exists,
            "torch._inductor.ir.MultiOutput": exists,
            "torch._inductor.codegen.cpp.OuterLoopFusedSchedulerNode": (
                has("merge_outer_fusion_kernels", *_SCHEDULED[:4])
            ),
            "torch._inductor.graph.GraphLowering": mentions(
                *("self.scheduler", "removed_buffers", "graph_input_names")
            ),
            "torch._inductor.output_code.CompiledFxGraph": lambda c: takes("inputs")(c.__call__),
            "torch._inductor.virtualized.V": has("set_graph_handler"),
        },
    ),
    Use(
        "assert_fused and explain: what Dynamo compiled, broke and compiled again",
        "fusion/compiler.py `breaks`, `recompiles`, `limits`, `seconds`: find the record's new "
        "name; test_fusion.py's canaries of breaks and recompilations must see them again",
        {
            "torch._dynamo.utils._compilation_metrics": lambda found: hasattr(found, "append"),
            "torch._dynamo.utils.graph_break_reasons": lambda found: isinstance(found, list),
            "torch._dynamo.exc.SkipFrame": lambda c: issubclass(c, Exception),
            "torch.__trace": lambda found: isinstance(found, logging.Logger),
            "torch._dynamo.reset": lambda f: f() is None,
            "torch._dynamo.utils.counters": _counters,
        },
    ),
    Use(
        "fuselab scan: where an optimizer's step ends, outside of torch's annotation of it",
        "scan/script/steps.py `_around`: find what wraps the step of an optimizer; a profile must "
        "neither begin nor end inside of an annotation that goes on behind it",
        {"torch.optim.Optimizer.profile_hook_step": _steps_of_optimizers},
        beyond={"torch.optim.Optimizer.profile_hook_step": "profile_hook_step"},
    ),
    Use(
        "whether a call wrote its inputs, and which tensors share memory",
        "worker/tensors/problem.py, scan/costs.py: compare the values before and after; compare "
        "data_ptr() of the storages, which live as long as they are compared",
        {
            "torch.Tensor._version": _versions,
            "torch.UntypedStorage._cdata": _storages,
        },
    ),
    Use(
        "settings of the compilers that a measurement fixes and gives back",
        "worker/, notebook/, explain/randomness.py, commands/measuring/prepare.py: look it up in "
        "torch/_inductor/config.py; a number measured with another is not comparable",
        {
            "torch._inductor.config": _settings("force_disable_caches", "fallback_random"),
            "torch._inductor.config.compile_threads": lambda n: isinstance(n, int),
            "torch._inductor.config.max_autotune": lambda on: on in (True, False),
            "torch._inductor.config.max_autotune_gemm": lambda on: on in (True, False),
            "torch._dynamo.config": _settings("use_numpy_random_stream"),
            "torch._functorch.config": _settings("donated_buffer"),
            "torch._inductor.runtime.autotune_cache": (
                lambda found: inspect.isfunction(found.AutotuneCache.save)
            ),
        },
    ),
    Use(
        "fuselab candidates: what Inductor's autotuner tries",
        "candidates/child.py, choices.py: the command ends with the error; nothing else needs them",
        {
            "torch._inductor.runtime.triton_heuristics.CachingAutotuner": has("run", "bench"),
            "torch._inductor.select_algorithm.AlgorithmSelectorCache": has("benchmark_choices"),
            "torch._inductor.select_algorithm.TritonTemplateCaller": has("info_dict"),
            "torch._inductor.codecache.PyCodeCache": has("load_by_key_path"),
        },
    ),
    Use(
        "kernel times: the profiler's events and the marker between calls",
        "timers/cupti.py: without the marker no kernel can be charged to a call; time by events",
        {
            "torch._C._autograd.DeviceType": has("CUDA"),
            "torch.cuda._sleep": exists,
            "torch.autograd.profiler.profile": lambda c: (
                {"use_cpu", "use_device", "use_kineto"} <= {*inspect.signature(c).parameters}
            ),
        },
        beyond={"torch.autograd.profiler.profile": "torch.autograd.profiler.profile("},
    ),
)

# These are skipped where Triton is not installed.
TRITONS = (
    Use(
        "a launch of a compiled kernel past Triton's binder",
        "primitives/triton/launch.py: read the launcher of that Triton and raise LAST, or leave "
        "LAST as it is: then launches are `kernel[grid]`, slower and right",
        {
            "torch._C._cuda_getDevice": exists,
            "torch._C._cuda_getCurrentRawStream": exists,
            "triton.knobs.runtime": has("launch_enter_hook", "launch_exit_hook"),
            "triton.runtime.jit.JITFunction": mentions("pre_run_hooks", "params", "arg_names"),
            "triton.compiler.CompiledKernel": mentions("packed_metadata", "function", "run"),
            "triton.backends.nvidia.driver.CudaLauncher": mentions(
                *("launch_cooperative_grid", "launch_pdl", "global_scratch_size"),
                *("profile_scratch_size", "self.launch"),
            ),
            "triton.tools.tensor_descriptor.TensorDescriptor": lambda c: (
                takes("tensor", "block_shape")(c.from_tensor) and has("__post_init__")(c)
            ),
        },
        beyond={
            "triton.runtime.jit.JITFunction": "pre_run_hooks",
            "triton.compiler.CompiledKernel": "packed_metadata",
            "triton.backends.nvidia.driver.CudaLauncher": "CudaLauncher",
        },
    ),
)
