"""Lab 02, Tensors are pointers."""
