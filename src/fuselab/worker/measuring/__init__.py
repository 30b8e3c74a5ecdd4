"""Time: timers chosen, interleaved rounds, the clocks beside them, what no call can beat."""
