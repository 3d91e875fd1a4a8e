"""Queries and actions of the operators' pages at `/admin`, across all users. The cost of every query is bounded."""
