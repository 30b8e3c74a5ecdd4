"""The lab in a notebook: plain functions, no spec, the pipeline of a worker in this process."""

from fuselab.notebook.measure import compare
from fuselab.notebook.results import Results

__all__ = ["Results", "compare"]
