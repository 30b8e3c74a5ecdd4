"""A script run in processes of its own, its steps found and recorded."""
