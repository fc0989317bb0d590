"""ELF files: what a library needs of others, and what its virtual tables say."""
