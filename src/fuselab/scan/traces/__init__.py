"""What was recorded of a step: traces as trees of events, events as calls of operators."""
