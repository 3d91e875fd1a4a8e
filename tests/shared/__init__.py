"""Tests of `shared`."""
