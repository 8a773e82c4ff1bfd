"""Lab 03, The machine."""
