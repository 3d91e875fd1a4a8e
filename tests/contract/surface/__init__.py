"""V1's surface: facts of its paths, parameters and fields, and the comparison of ours with them."""
