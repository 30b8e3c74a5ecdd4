"""Norms over rows in Triton whose result is float8_e4m3fn, and the layer norm's arithmetic."""
