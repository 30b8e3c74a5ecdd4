"""How far a result is from the formula in fp64, and whether that is too far."""
