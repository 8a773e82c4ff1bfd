"""Lab 10: the learner's operator tested, shipped, and put into models."""
