"""Which cells are measured: operators times filters, drawn problems, parts of a run."""
