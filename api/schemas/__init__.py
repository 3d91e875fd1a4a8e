"""Request and response bodies under V1's names (wire contract, appendix B), and Agent Workspace extensions of them."""
