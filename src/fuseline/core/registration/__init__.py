"""Stamps operators on torch's dispatcher; their public functions; what else is registered there."""
