"""What grading a kernel takes beside grading a function: guard, compiler, traffic."""
