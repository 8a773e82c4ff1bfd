"""Lab 08, Concurrent writes."""
