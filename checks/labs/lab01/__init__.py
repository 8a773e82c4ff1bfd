"""Lab 01, Reading between pixels."""
