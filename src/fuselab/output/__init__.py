"""What the lab writes: files in one step, text for a terminal, the style of pages."""
