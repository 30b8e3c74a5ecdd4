"""How operators run on DTensors: which dimensions of their tensors may be sharded."""

from fuseline.core import boundary
from fuseline.sharding.registration import register as register

boundary.on_dtensor.append(register)
