"""Convolutions and what follows them: one contract, and the libraries that serve it."""
