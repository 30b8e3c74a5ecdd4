"""One plain sentence a key and turn: what the dispatcher does there."""

from __future__ import annotations

from fuselab.trace.walk import Step, Turn

# The longest name that a key starts with counts.
_AT = {
    "FuncTorch": {
        Turn.REENTERS: "functorch (vmap, grad, jvp) interprets the call: its transformation runs,"
        " then calls the operator again on what is within.",
        Turn.PASSES: "No transformation of functorch is at work on these tensors.",
    },
    "PreDispatch": {
        Turn.REENTERS: "A mode above all keys takes the call, then calls the operator again.",
        Turn.PASSES: "No mode above the other keys is on.",
    },
    "PythonTLSSnapshot": {
        Turn.PASSES: "Nothing to do: no state of the thread has to be kept.",
        Turn.CALLS_AGAIN: "Keeps the state of the thread, then calls the operator again.",
    },
    "PythonDispatcher": {Turn.CALLS_AGAIN: "The dispatcher written in Python takes the call."},
    "Python": {
        Turn.CALLS_AGAIN: "A TorchDispatchMode or a subclass of Tensor takes the call"
        " (__torch_dispatch__)."
    },
    "Autocast": {
        Turn.CALLS_AGAIN: "Casts the tensors to the dtype of autocast that this operator is listed"
        " for, then calls it again without autocast.",
        Turn.PASSES: "Autocast is on and has no rule for this operator: its tensors stay.",
    },
    "Autograd": {
        Turn.CALLS_AGAIN: "Notes how to compute gradients if a tensor requires one, then calls the"
        " operator again below autograd.",
        Turn.PASSES: "Autograd has nothing registered: the result has no gradient from here.",
        Turn.DECOMPOSES: "The operator is written with others and has no gradient of its own:"
        " they are called one by one, each with all its keys.",
    },
    "ADInplaceOrView": {
        Turn.PASSES: "Counts versions and keeps views; this operator changes nothing in place and"
        " returns no view.",
        Turn.CALLS_AGAIN: "Raises the version of what changes in place, or keeps the view's base,"
        " then calls the operator again.",
    },
    "BackendSelect": {
        Turn.PASSES: "Chooses a backend for operators without tensors; these have one.",
        Turn.CALLS_AGAIN: "Chooses the backend by the arguments `device` and `layout`.",
    },
    "Functionalize": {
        Turn.CALLS_AGAIN: "Replaces what changes in place by what does not, then calls again.",
        Turn.PASSES: "Nothing to make functional.",
    },
    "Meta": {Turn.ENDS: "Computes shape and dtype of the result only: there is no data."},
    "": {
        Turn.ENDS: "The kernel for {key} tensors computes the result.",
        Turn.DECOMPOSES: "The operator is written with others, also for {key}: they are called one"
        " by one.",
        Turn.PASSES: "Nothing is registered that would act here.",
        Turn.CALLS_AGAIN: "Acts, then calls the operator again below this key.",
        Turn.REENTERS: "Interprets the call, then calls the operator again.",
        Turn.MISSING: "No kernel is registered for {key}: the call raises NotImplementedError.",
    },
}


# Where autograd has a fallback for operators without a gradient of their own.
_NO_GRADIENT = (
    "No gradient is registered for this operator; autograd's fallback calls it again below"
    " autograd. If a gradient is there, it is of what called this operator."
)


def sentence(step: Step) -> str:
    """Return what happens at a step of a walk, in one sentence."""
    if step.key.startswith("Autograd") and "VariableFallbackKernel" in step.place:
        return _NO_GRADIENT
    for start in sorted(_AT, key=len, reverse=True):
        if step.key.startswith(start) and step.turn in _AT[start]:
            return _AT[start][step.turn].format(key=step.key)
    raise KeyError(f"{step.key}, {step.turn}")
