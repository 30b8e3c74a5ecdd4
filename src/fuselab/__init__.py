"""The lab: checks, measures, compares and reports any PyTorch operator."""
