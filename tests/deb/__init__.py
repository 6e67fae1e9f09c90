"""The Debian package on a clean Debian: installed, used with a real engine, upgraded, removed, purged."""
