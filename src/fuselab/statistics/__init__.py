"""Statistics of samples: robust summaries, rank tests, comparisons, pooling."""
