"""The Debian package. ``python -m deploy.deb`` builds it, ``make deb`` with the tools that it needs."""
