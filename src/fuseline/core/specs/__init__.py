"""Specs of operators, from which tests and lab derive, and cases that specs share."""
