"""The operators' references in JAX: what XLA makes of the same formulas."""
