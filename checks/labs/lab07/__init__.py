"""Lab 07, The other direction."""
