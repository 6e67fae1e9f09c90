"""Helpers for all parts: tasks, threads, child processes and TLS. They know nothing of pods or containers."""
