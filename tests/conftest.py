"""Spares the garbage collector what pytest and the modules keep until the end."""

import gc

# A million objects stay: walked again and again, they take half of collection's time and seconds
# of tests that have garbage collected.
gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()
