"""Builds framework wheels that carry Large Model Support.

The commands (cli, conda_commands, doctor) are at the top; below them, a package for each thing that they work on. In a
package, begin with the module of the same name. tests/tool/test_layers.py says which may import which.
"""
