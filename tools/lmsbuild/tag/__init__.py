"""`lmsbuild tag`: rows of the catalogue, made and checked."""
