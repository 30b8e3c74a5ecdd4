"""The worker: the one process that touches the device, told what to do over a pipe."""
