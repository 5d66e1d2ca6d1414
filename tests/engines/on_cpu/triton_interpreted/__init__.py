"""A Triton backend named `cpu` that compiles nothing; the kernels run in Triton's own interpreter."""
