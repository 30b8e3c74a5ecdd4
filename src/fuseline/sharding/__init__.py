"""How operators run on DTensors: which dimensions of their tensors may be sharded."""

from fuseline.core.inputs import boundary


def register() -> None:
    """Register how every operator runs on DTensors, once.

    The first call of an operator with a DTensor does it. To be called before only where torch's
    dispatcher meets a DTensor first, as of torch.ops.fuseline in inference mode. Imports
    torch.distributed.tensor. Raises RuntimeError where this torch has no register_sharding.
    """
    # A few milliseconds, which only those with DTensors pay.
    from fuseline.sharding.registration import register_all

    register_all()


boundary.on_dtensor.append(register)
