"""fuseline.patch: norms and chains of a model on fuseline's kernels, each after a proof."""

from fuseline.patching.model import patch, patch_status, unpatch
from fuseline.patching.report import Calls, PatchStatus, Report
from fuseline.patching.serving import Patched

__all__ = ["Calls", "PatchStatus", "Patched", "Report", "patch", "patch_status", "unpatch"]
