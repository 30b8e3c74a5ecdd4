"""What `fuselab doctor` measured last on a device, kept in the lab's own cache folder."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from fuselab.processes import caches

# What makes it another device, or the same at another speed.
IDENTITY = ("device", "gpu", "cpu", "threads", "driver", "power_limit_w")

Memory = Mapping[str, Mapping[str, Mapping[str, float]]]


@dataclass(frozen=True)
class Roofs:
    """GB/s by mix of streams, bytes a call and kernels; FLOP/s by what computes them."""

    memory: Memory
    compute: Mapping[str, float]
    measured_at: str

    @property
    def good(self) -> bool:
        """Whether every number is a speed: finite and above 0."""
        sizes = [size for mix in self.memory.values() for size in mix.values()]
        speeds = [gbps for kernels in sizes for gbps in kernels.values()]
        return all(0 < value < math.inf for value in (*speeds, *self.compute.values()))

    def peak(self, dtype: str) -> tuple[float, str] | None:
        """Return the FLOP/s that an operator without matrix products can reach, and of what.

        Half types are computed in float32 there. None if unknown.
        """
        if "float" not in dtype:
            return None
        computed = "float64" if dtype == "float64" else "float32"
        found = [(value, name) for name, value in self.compute.items() if name.startswith(computed)]
        return max(found, default=None)


def save(environment: Mapping[str, Any], found: Mapping[str, Any]) -> Roofs:
    """Keep what was measured just now in this environment; ValueError for what is no speed."""
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    roofs = Roofs(found["memory"], found["compute"], now)
    if not roofs.good:
        raise ValueError(f"roofs: got {found}, expected finite numbers above 0")
    place = _place(environment)
    place.write_text(json.dumps(asdict(roofs), indent=1), encoding="utf-8")
    return roofs


def load(environment: Mapping[str, Any]) -> Roofs | None:
    """Return what was measured last in such an environment, None if nothing good was."""
    try:
        found = Roofs(**json.loads(_place(environment).read_bytes()))
        return found if found.good else None
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def _place(environment: Mapping[str, Any]) -> Path:
    identity = json.dumps([environment.get(name) for name in IDENTITY])
    # "quiet": before, roofs were kept that a loaded machine had given.
    return caches.root() / f"quiet-roofs-{hashlib.sha256(identity.encode()).hexdigest()[:12]}.json"
