"""fuselab compile-bench: what compiling costs and brings, for every operator and common blocks."""
