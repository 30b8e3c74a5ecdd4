"""fuselab explain: what torch.compile made of a function, in a process and caches of its own."""
