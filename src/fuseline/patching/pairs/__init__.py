"""Modules that follow one another in a forward, on one of fuseline's operators."""
