"""Running a kernel on the CPU: emulated, guarded, traced, interleaved."""
