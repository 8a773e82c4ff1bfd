"""Lab 09, The precision switch."""
