"""fuseline.patch, unpatch, patch_status: norms and chains of a model, each after a proof."""

from __future__ import annotations

import sys
import threading
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch.nn import Module

from fuseline import nn
from fuseline.ops.rms_norm.op import SELECTOR as RMS_NORM
from fuseline.patching import form as structure
from fuseline.patching import loss as losses
from fuseline.patching.activations.gelu import Gelus
from fuseline.patching.gates import GatedLayer, Gates
from fuseline.patching.logits import output_layer
from fuseline.patching.pairs.find import ALREADY, Pairs
from fuseline.patching.pairs.holder import Holder
from fuseline.patching.proof import Proof, prove
from fuseline.patching.report import Calls, PatchStatus, Report
from fuseline.patching.rotary import Rotaries
from fuseline.patching.serving import (
    Serving,
    Watched,
    fixed_attributes,
    install,
    own_class,
    patched_class,
    remove,
    replaced_forward,
)

_lock = threading.Lock()


def patch(model: Module, impl: str = "auto", keep_logits: bool = False) -> Report:
    """Have norms and chains of modules of a model run on fuseline's operators, in place.

    model  any module. Norms, by fuseline.rms_norm and layer_norm: torch.nn.RMSNorm,
           torch.nn.LayerNorm and what looks like them (no children, a parameter `weight`, perhaps a
           `bias`, an eps), as in transformers' Llama, Qwen, Mistral and Gemma. Each is compared on
           random inputs, forward and gradients, with what would take its place: x of 1 to 5
           dimensions, all dtypes, training and eval, with and without autocast.
           Chains, by conv_bn and matmul_add_gelu: Conv2d, BatchNorm2d and perhaps ReLU, or Linear
           and GELU, that a module's forward of one argument calls one after another, as
           torchvision's ResNet, nn.Sequential and timm's Mlp do. The forward is compared with the
           calls that were found in it, bit by bit; each chain, running statistics too, with fp64.
           Gated layers, by swiglu and geglu: down(act(gate(x)) * up(x)) of Linear layers, or one of
           them for both, as in transformers' Llama, Gemma and Phi-3; proven as chains are. The
           product that `down` takes is not kept for backward, which computes it again.
           Activations that spell GELU out, as transformers' NewGELUActivation, by torch's gelu: one
           kernel that keeps x, for some eight; value and gradient are compared with fp64.
           Losses, by cross_entropy: the loss function of a transformers model, if it is that of the
           next label each or of its own (ForCausalLMLoss, ForMaskedLMLoss); loss and gradient are
           compared with fp64. In training the linear layer before it goes into
           linear_cross_entropy, so that there are no logits: they are computed when something reads
           them, which must be before backward. torch's cross_entropy of these logits reads nothing
           either, in the forward (BERT, T5) or behind it.
           Rotary embeddings, by rope: attention of transformers' models whose forward calls the
           global apply_rotary_pos_emb of its file, a function of q, k, cos and sin that is compared
           with fp64. The module runs its own forward in which that name alone is another.
    impl   as in rms_norm and, where there is one of the name, in conv_bn and matmul_add_gelu; with
           "auto" calls that torch computes as fast (on a CPU: layer norms, conv_bn, GELU where a
           gradient is wanted), or may (conv_bn on a GPU, not measured), are left to it. The report
           names them.
    keep_logits  compute the logits in training, too, whether or not something reads them.

    Calls of a kind that was not shown to give the same, of a tensor subclass, of another dtype than
    the weight's, or after a change of an attribute or of the class go to the module's own forward,
    as do those of a chain while one of its modules has a hook: fuseline.patch_status counts both.
    So do, uncounted, all calls in compiled code but of the loss: torch.compile makes kernels of its
    own there, which fuse with what is beside them. Globals that a forward reads are not watched,
    and x must not be written to before backward, as with torch.nn.LayerNorm. A model that moves to
    another kind of device is to be patched there. Parameters, buffers, hooks, names, device and the
    state dict stay as they are, and a module is still an instance of its class; calls in other
    threads stay right meanwhile. `unpatch` undoes it.
    Raises TypeError (model) or ValueError (impl).
    """
    if not isinstance(model, Module):
        raise TypeError(f"model: got a {type(model).__name__}, expected a torch.nn.Module")
    if impl != "auto":
        RMS_NORM.unavailable(impl, "cpu")  # refuses unknown names
    with _lock:
        return _Patch(model, impl, keep_logits).report()


def unpatch(model: Module) -> int:
    """Give what `patch` replaced in `model` its own back; return how many modules and losses."""
    with _lock:
        return sum([remove(m) + losses.remove(m) for m in model.modules()])


def patch_status(model: Module) -> PatchStatus:
    """Return how many eager calls the patched modules of a model have served, and which not.

    Of a module that holds chains, each of these is counted for itself.
    """
    found = []
    for name, module in model.named_modules():
        serving: Watched | None = vars(module).get("_fuseline")
        if isinstance(serving, Holder):
            found += [Calls(s.name, s.kind, s.served, dict(s.own)) for s in serving.sites]
        elif serving is not None:
            kind = own_class(module).__name__
            found.append(Calls(name, kind, serving.served, dict(serving.own)))
        loss = vars(module).get(losses.PLACE)
        if isinstance(loss, losses.Loss):
            place, kind = _place(name), loss.own_function.__name__
            found.append(Calls(place, kind, loss.served, dict(loss.own)))
    return PatchStatus(tuple(found))


def _place(name: str) -> str:
    return f"{name}.loss_function".removeprefix(".")


class _Patch:
    """One call of patch: modules that are alike are proven once."""

    def __init__(self, model: Module, impl: str, keep_logits: bool) -> None:
        self.model, self.impl, self.keep_logits = model, impl, keep_logits
        self.sharded = _is_sharded(model)
        self.proofs: dict[Any, Proof | str] = {}

    def report(self) -> Report:
        replaced: list[Any] = []
        kept: list[Any] = []
        partly: list[Any] = []
        pairs = Pairs(self.impl, self.sharded)
        for name, module in list(self.model.named_modules()):
            holder = pairs.holder(name, module)
            if holder is not None:
                install(module, holder)
                replaced += [(site.name, site.kind) for site in holder.sites]
                partly += holder.missing
        self._gates(replaced, kept, partly)
        self._gelus(pairs.known, replaced, kept)
        for name, module in list(self.model.named_modules()):
            if id(module) in pairs.known or not structure.looks_like_a_norm(module):
                continue
            kind = own_class(module).__name__
            found = self._serving(module)
            if isinstance(found, str):
                kept.append((name, kind, found))
                continue
            install(module, found)
            replaced.append((name, kind))
            partly += [(name, kind, why) for why in found.missing]
        self._rotary(replaced, kept)
        for name, module in list(self.model.named_modules()):
            self._loss(name, module, replaced, kept)
        return Report(tuple(replaced), (*kept, *pairs.kept), tuple(partly))

    def _gates(self, replaced: list[Any], kept: list[Any], partly: list[Any]) -> None:
        """Have gated layers served, or note why not."""
        gates = Gates(self.impl)
        for name, module in list(self.model.named_modules()):
            found, kind = gates.serving(module), own_class(module).__name__
            before = vars(module).get("_fuseline")
            if isinstance(found, GatedLayer) and before is not None and found.is_as(before):
                kept.append((name, kind, ALREADY))
            elif isinstance(found, GatedLayer):
                install(module, found)
                replaced.append((name, kind))
                partly += [(name, kind, why) for why in found.missing]
            elif found is not None:
                kept.append((name, kind, found))

    def _gelus(self, known: Any, replaced: list[Any], kept: list[Any]) -> None:
        """Have activations that spell GELU out served, but those of chains and gated layers."""
        inside = {
            id(m._modules[s.act])
            for m in self.model.modules()
            if isinstance(s := vars(m).get("_fuseline"), GatedLayer)
        }
        gelus = Gelus(self.impl)
        for name, module in list(self.model.named_modules()):
            if id(module) in known or id(module) in inside:
                continue
            found = gelus.serving(module, partial(self._devices, module))
            if found is not None and found.is_as(vars(module).get("_fuseline")):
                kept.append((name, own_class(module).__name__, ALREADY))
            elif found is not None:
                install(module, found)
                replaced.append((name, own_class(module).__name__))

    def _rotary(self, replaced: list[Any], kept: list[Any]) -> None:
        """Have the rotary embeddings of attention served, or note why not."""
        rotaries = Rotaries(self.impl)
        for name, module in list(self.model.named_modules()):
            found, kind = rotaries.serving(module), own_class(module).__name__
            if isinstance(found, str):
                kept.append((name, kind, found))
            elif found is not None and found.still(vars(module).get("_fuseline")):
                kept.append((name, kind, ALREADY))
            elif found is not None:
                install(module, found)
                replaced.append((name, kind))

    def _loss(self, name: str, module: Any, replaced: list[Any], kept: list[Any]) -> None:
        """Have a model's loss served, or note why not."""
        own, before = losses.own_loss(module), vars(module).get(losses.PLACE)
        if own is None:
            return
        place, kind = _place(name), getattr(own, "__name__", type(own).__name__)
        where = [p.device for p in module.parameters() if p.device.type != "meta"]
        found = losses.serve(own, self.impl, where[0]) if where else "its weights are on meta"
        if isinstance(found, str):
            kept.append((place, kind, found))
            return
        if isinstance(before, losses.Loss) and before.still(found):
            kept.append((place, kind, ALREADY))
        else:
            losses.install(module, found)
            replaced.append((place, kind))
        self._head(module, found, replaced)

    def _head(self, model: Any, loss: losses.Loss, replaced: list[Any]) -> None:
        """Have the logits that a loss takes computed when they are read, or always."""
        layer: Any = output_layer(model)
        if layer is None:
            return
        before = vars(layer).get("_fuseline")
        head = None if self.keep_logits or self.sharded else loss.head(layer)
        if head is None and before is not None:
            remove(layer)
        elif head is not None and not head.still(before):
            install(layer, head)
            names = [name for name, module in self.model.named_modules() if module is layer]
            replaced += [(name, "Linear") for name in names]

    def _serving(self, module: Module) -> Serving | str:
        """Return what would serve a module, or why it is left alone."""
        if isinstance(module, nn.RMSNorm):
            return ALREADY
        if replaced_forward(module):
            return "its forward was replaced on the instance"
        if why := structure.unlike(module) or structure.unfit(module, self.sharded):
            return why
        forms = structure.forms(module, self.impl)
        fixed = fixed_attributes(module)
        if isinstance(fixed, str):
            return fixed
        devices = self._devices(module)
        before: Serving | None = vars(module).get("_fuseline")
        known = before is not None and (before.impl, before.fixed) == (self.impl, fixed)
        proofs = dict(before.proofs) if before is not None and known else {}
        if devices.keys() <= proofs.keys():
            return ALREADY
        found = {kind: self._on(module, forms, d, fixed) for kind, d in devices.items()}
        if all(isinstance(proof, str) for proof in found.values()):
            return "; ".join(dict.fromkeys(map(str, found.values())))
        for kind, proof in found.items():
            faster = None if isinstance(proof, str) else structure.slower(proof.form, kind)
            proofs[kind] = faster or proof
        return Serving(self.impl, proofs, fixed)

    def _devices(self, module: Module) -> dict[str, torch.device]:
        """Return the devices on which to prove a module, by kind.

        They are its weight's, else those of the model's tensors, else all that are usable.
        """
        weight, _ = structure.parameters(module)
        tensors = chain(self.model.parameters(), self.model.buffers()) if weight is None else ()
        where = [t.device for t in tensors] if weight is None else [weight.device]
        where = [device for device in where if device.type != "meta"]
        return {device.type: device for device in where or usable_devices()}

    def _on(self, module: Module, forms: Any, device: torch.device, fixed: Any) -> Proof | str:
        reasons = [structure.unavailable(form, device.type) for form in forms]
        able = [form for form, reason in zip(forms, reasons, strict=True) if reason is None]
        return self._proof(module, able, device, fixed) if able else str(reasons[0])

    def _proof(self, module: Module, forms: Any, device: torch.device, fixed: Any) -> Proof | str:
        own: Any = own_class(module)
        try:
            made = patched_class(own)
        except Exception as error:  # whatever its metaclass does
            return f"a subclass of {own.__name__} raises {type(error).__name__}: {error}"
        try:
            key = hash((own, tuple(forms), device, fixed)), own, repr(fixed)
        except TypeError:  # an attribute that may change: no other module is alike
            return prove(module, own, made, forms, device)
        if key not in self.proofs:
            self.proofs[key] = prove(module, own, made, forms, device)
        return self.proofs[key]


def usable_devices() -> list[torch.device]:
    """Return a device of each kind that a norm without parameters may be called on."""
    names = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    return [torch.device(name) for name in names]


def _is_sharded(model: Module) -> bool:
    """Whether FSDP gathers the parameters of the model before it runs."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and any(isinstance(m, fsdp.FSDPModule) for m in model.modules())
