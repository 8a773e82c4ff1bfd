"""Compiling a kernel without a GPU, and reading what the compiler wrote."""
