"""What a device can do: ceilings of its memory, its roofs, the lab's test of itself on it."""
