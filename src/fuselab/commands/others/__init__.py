"""Verbs that measure other people's code: solutions of problems, scripts."""
