"""Lab 10, Ship it."""
