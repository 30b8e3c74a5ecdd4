"""A unit test for fusion: how many kernels a call runs, how many bytes they move, and why.

`fuselab.assert_fused` is the assertion, `plugin` the pytest plugin with the fixture and the marker.
"""
