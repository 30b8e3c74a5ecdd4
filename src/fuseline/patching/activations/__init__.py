"""Modules of models that are a function of one tensor."""
