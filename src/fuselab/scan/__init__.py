"""`fuselab scan`: what a script's step spends its time on, and what our operators bring to it."""

from fuselab.scan.script.marks import step as step
