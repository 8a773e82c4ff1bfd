"""Multi-scale deformable attention: what it computes, fast kernels for it, and the machine they run on."""

__version__ = "0.2.0"
