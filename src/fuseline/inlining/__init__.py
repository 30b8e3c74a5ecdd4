"""Compiled graphs in which the formula takes the place of an operator, where that is faster."""

from fuseline.inlining.options import compile_options as compile_options
