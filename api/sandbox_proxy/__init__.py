"""The sandbox path, `/sandbox/{sandbox_id}/…`: traffic to a sandbox's agent server, which wakes it (decision 26)."""
