"""The bill of materials (SBOM) of what is built."""
