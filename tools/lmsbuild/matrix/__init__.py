"""What can be built, and building all of it, on this machine or on many."""
