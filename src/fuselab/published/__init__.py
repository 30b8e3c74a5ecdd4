"""Published numbers as data, with where they come from, and what a run has beside them."""
