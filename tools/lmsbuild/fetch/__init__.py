"""What comes from a network, and the cache of it: wheels, files of wheels, CUDA's headers."""
