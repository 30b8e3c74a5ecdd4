"""Is a result right: before the timing, of timed calls, and what verdicts rest on."""
