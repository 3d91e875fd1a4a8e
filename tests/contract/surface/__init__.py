"""V1's interface: a table of its paths, parameters and fields, and the comparison of this service with it."""
