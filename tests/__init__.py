"""The tests, in folders like those of the code. Shared code is in this folder, `fakes`, `fixtures` and `services`."""
