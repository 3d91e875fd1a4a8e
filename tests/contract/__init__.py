"""The contract with clients of OpenHands V1: the V1 interface, and the behaviour of real agent servers."""
