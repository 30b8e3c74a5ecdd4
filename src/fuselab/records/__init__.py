"""Flat records of measurements: their columns, how they are made, as tables of others."""
