"""Clusters of several machines, which are network namespaces with their own engines."""
