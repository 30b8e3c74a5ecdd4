"""A script without a step."""

print(sum(range(10)))
