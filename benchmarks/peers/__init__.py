"""Programs of other libraries (MPI, oneCCL), of the core alone and of the memory's limit, as contenders."""
