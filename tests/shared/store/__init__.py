"""Tests of `shared.store`."""
