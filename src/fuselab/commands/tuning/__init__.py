"""`fuselab tune`: launch parameters measured, rules learned, landscapes drawn."""
