"""Verbs that show the framework from inside: dispatcher, compiler, XLA, training."""
