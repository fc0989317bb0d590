"""What is known of each tag: patches/catalogue, read and written."""
