"""Starting, refreshing and deleting conversations on agent servers."""
