"""Measurements: the operator against its peers, the contest of lab 6, and the paper GPU against Nsight Compute."""
