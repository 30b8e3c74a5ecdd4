"""Pictures: bandwidth over size, heat maps of ratios, rooflines."""
