"""The packages for rpm. ``python -m deploy.rpm`` builds them, ``make rpm`` with the tools that it needs."""
