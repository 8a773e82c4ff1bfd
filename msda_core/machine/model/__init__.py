"""Models on top of counts: roofline, occupancy, estimates, a simulated clock."""
