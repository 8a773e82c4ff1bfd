"""Lab 06, Make it fast."""
