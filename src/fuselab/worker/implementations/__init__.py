"""The implementations of a group, baselines among them, and the way of each through it."""
