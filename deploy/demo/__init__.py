"""The demonstration: a scripted model and the terminal story that `make demo` tells with it."""
