"""fuselab internals: the course's folders, all of them anew."""
