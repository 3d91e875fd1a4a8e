"""The wire's shapes, V1's names (wire contract, appendix B); extensions are marked as ours."""
