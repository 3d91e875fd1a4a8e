"""The sandbox path, `/sandbox/{sandbox_id}/…`: a proxy to agent servers that wakes paused sandboxes (decision 26)."""
