"""What is stored of a run: one SQLite file of measurements, checked when they come back."""
