"""Lab 04, Hello, Triton."""
