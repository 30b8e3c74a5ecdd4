"""fuselab study: what the study of fusion did, repeated: the same cells by each of its methods."""
