"""The graft: an official wheel with the patch compiled into it."""
