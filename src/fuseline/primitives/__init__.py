"""Device maths that at least two operators use."""
