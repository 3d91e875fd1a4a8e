"""Preparing a sandbox's workspace: clones, scripts, git credentials."""
