"""The state of the node: copies of what the engine has, kept in sync by its events, and what pods need beside them."""
