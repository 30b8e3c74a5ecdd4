"""Verbs that read runs that are stored: shown, compared, merged, exported."""
