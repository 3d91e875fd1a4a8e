"""Clusters of several machines, which are network namespaces with engines of their own."""
