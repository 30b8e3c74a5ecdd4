"""Processes of the lab: how they start, their environment and caches, questions to them."""
