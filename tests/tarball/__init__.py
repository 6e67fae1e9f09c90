"""The tarball and the single file on a clean Debian, without a network: installed, upgraded, used, removed."""
