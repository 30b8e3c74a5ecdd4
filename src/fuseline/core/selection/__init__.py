"""Which implementation runs, with which launch parameters, and why."""
