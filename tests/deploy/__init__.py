"""Tests of `deploy`."""
