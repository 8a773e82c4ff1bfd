"""Lab 05, The forward kernel."""
