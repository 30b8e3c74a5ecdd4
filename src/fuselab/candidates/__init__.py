"""fuselab candidates: what the inductor's tuner tries for each kernel, and what it keeps."""
