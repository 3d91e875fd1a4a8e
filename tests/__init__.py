"""The tests, in the shape of the tree; what they share lies beside this file and in `services`."""
