"""The Docker Engine: its HTTP API, its errors, and what it can do."""
