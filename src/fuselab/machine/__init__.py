"""The machine beside the measurement: load of others, the lock of a device, its roofs."""
