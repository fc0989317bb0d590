"""Traces of memory blocks, recorded in training and replayed under every policy of the pager."""
