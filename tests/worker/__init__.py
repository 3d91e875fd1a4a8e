"""Tests of `worker`."""
