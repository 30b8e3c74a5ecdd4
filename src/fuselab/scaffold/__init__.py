"""fuselab new: a stand-alone package with one operator, to be made one's own."""
