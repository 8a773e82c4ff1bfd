"""The grader itself: exercises, calls, comparison, verdicts. Knows no lab."""
