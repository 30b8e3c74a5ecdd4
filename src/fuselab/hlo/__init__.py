"""fuselab hlo: what XLA made of an operator's formula."""
