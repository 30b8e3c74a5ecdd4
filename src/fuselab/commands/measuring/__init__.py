"""Verbs that check and measure operators, the phases of a run, and the lab's test of itself."""
