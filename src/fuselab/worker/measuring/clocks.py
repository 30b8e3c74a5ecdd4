"""The state of a GPU beside each block of timed calls: clock, temperature, what held it back."""

from __future__ import annotations

from dataclasses import replace

import torch

from fuselab import environment
from fuselab.model import Proof

# Bits of NVML's clocks event reasons; those that are no hindrance (idle, a set clock) are left out.
REASONS = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
# A power cap is a fact of the card; the others mean that something is wrong with the machine.
DISTURBING = frozenset(REASONS.values()) - {"power cap"}
SM_CLOCK = 1
TEMPERATURE_GPU = 0


class Clocks:
    """Collects one reading a block for each label; empty where there is no GPU or no NVML."""

    def __init__(self, device: torch.device) -> None:
        self._handle = environment.nvml_handle(device) if device.type == "cuda" else None
        self._mhz: dict[str, list[int]] = {}
        self._celsius: dict[str, int] = {}
        self._reasons: dict[str, int] = {}

    def read(self, label: str) -> None:
        """Note the state now, while the clock still is that of the block that just ended."""
        if self._handle is None:
            return
        mhz = environment.ask_nvml("nvmlDeviceGetClockInfo", self._handle, SM_CLOCK)
        celsius = environment.ask_nvml("nvmlDeviceGetTemperature", self._handle, TEMPERATURE_GPU)
        bits = environment.ask_nvml("nvmlDeviceGetCurrentClocksThrottleReasons", self._handle)
        if mhz:
            self._mhz.setdefault(label, []).append(mhz)
        self._celsius[label] = max(celsius or 0, self._celsius.get(label, 0))
        self._reasons[label] = self._reasons.get(label, 0) | (bits or 0)

    def noted(self, proof: Proof, label: str) -> Proof:
        """Add the SM clock of each block, the highest temperature, and what held it back."""
        if label not in self._mhz:
            return proof
        return replace(
            proof,
            sm_mhz=tuple(self._mhz[label]),
            temperature_c=self._celsius[label],
            throttle=tuple(self._held_back(label)),
        )

    def disturbance(self, label: str) -> str:
        """Say what slowed the GPU down that should not, or ""."""
        found = [reason for reason in self._held_back(label) if reason in DISTURBING]
        return f"the GPU reported {' and '.join(found)} while it was timed" if found else ""

    def _held_back(self, label: str) -> list[str]:
        bits = self._reasons.get(label, 0)
        return [name for bit, name in REASONS.items() if bits & bit]
