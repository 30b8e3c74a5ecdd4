"""What this process can run on."""

from __future__ import annotations

import importlib.util
import os


def triton_unavailable(device_type: str) -> str | None:
    """Return why Triton kernels cannot run on a device type, or None."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    if device_type == "cuda" or (
        device_type == "cpu" and os.environ.get("TRITON_INTERPRET", "0") == "1"
    ):
        return None
    return f"Triton kernels run on cuda only, not on {device_type} (but for TRITON_INTERPRET=1)"
