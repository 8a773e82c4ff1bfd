"""Counting: accesses of a trace meet instructions of a lowering."""
