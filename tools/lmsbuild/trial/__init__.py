"""Trains a model with a fresh wheel in a throw-away environment."""
